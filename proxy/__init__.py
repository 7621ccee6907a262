"""warmroute: the proxy. The package map is in ARCHITECTURE.md; nothing is defined here."""

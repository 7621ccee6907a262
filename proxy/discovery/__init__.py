"""Finding replicas while the proxy runs: sources that tell, again and again, which ones there are."""

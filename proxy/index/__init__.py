"""Which replica holds which prefix."""

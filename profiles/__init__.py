"""Reports that are shipped, and the modules that collect, cut and trim reports (README.md)."""

"""Read this machine's clock and limits, and read and write its files."""

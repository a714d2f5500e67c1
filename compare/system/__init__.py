"""Read this machine's clock and its limits, read and write files, and ask Slurm's controller."""

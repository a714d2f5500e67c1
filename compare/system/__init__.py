"""Read this machine's clock and limits, read and write its files, and ask Slurm's controller."""

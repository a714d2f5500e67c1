"""Scripts that run on the ranks of a bench, one process each."""

"""Sum gradients in memory that all ranks of one host share."""

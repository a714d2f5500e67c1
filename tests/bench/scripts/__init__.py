"""What runs on the ranks of a bench, each started as a process of its own."""

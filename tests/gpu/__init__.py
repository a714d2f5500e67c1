"""Checks for a machine with a GPU."""

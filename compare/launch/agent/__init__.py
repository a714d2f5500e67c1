"""Run a launch on one host for the parent."""

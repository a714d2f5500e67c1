"""Run a launch on one host, for the parent at the other end of a pipe."""

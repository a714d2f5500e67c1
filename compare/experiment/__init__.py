"""Settle flags into a RunConfig, decide what comes next, and carry it out."""

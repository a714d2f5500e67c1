"""Settle a request, decide what comes next, and carry it out."""

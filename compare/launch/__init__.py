"""Carry one launch from its start to its end."""

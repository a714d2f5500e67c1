"""Derive findings from facts, one pure function for each rule."""

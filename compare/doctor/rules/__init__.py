"""Derive findings from facts: one function for each rule. Everything here is pure."""

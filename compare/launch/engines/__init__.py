"""Reach hosts: one file for each way."""

"""Ringside measured: ``python -m tests.bench`` holds the product to its targets of speed.

Every claim is a ratio of two things measured in turns (A B B A) in one run, with an interval; CPU time
that other programs took meanwhile is measured too, and what was disturbed is measured again.
"""

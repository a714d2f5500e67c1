"""Measure Ringside's own speed against its targets: ``python -m tests.bench``.

Every claim is a ratio of two things measured in turns (A B B A), with an interval. The CPU time
of other programs is measured too, and noisy measurements are repeated.
"""

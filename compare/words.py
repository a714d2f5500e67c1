"""Numbers as people say them."""

from __future__ import annotations


def counted(number: float, noun: str) -> str:
    """Put a noun behind its number, in the plural but for one: ``1 round``, ``2 rounds``, ``1.5 cores``."""
    shown = f"{number}" if isinstance(number, int) else f"{number:g}"  # no exponent in what was counted
    return f"{shown} {noun}" if number == 1 else f"{shown} {noun}s"

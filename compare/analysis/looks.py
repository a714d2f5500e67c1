"""Choose when the verdicts of a run are looked at, and how much of alpha each look may spend.

The method is that of Lan & DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 70
(1983). The share of alpha that is spent by a look is t^2, where t is its share of the planned rounds (the
power family of Kim & DeMets, Biometrika 74, 1987). The level of a look is what it may spend (Bonferroni over
looks), so the sum of levels holds for any dependence between looks. The plan may change during a run if time
changes it and never the figures. ``docs/method.md`` tells why looks are few, and why most of alpha is kept
for the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

ALPHA = 0.05
"""Largest probability that a run shows any false difference."""
FIRST_LOOK = 5
"""Number of rounds at the first of several looks.

If launches are either quick or slow, a few rounds may all fall the same way with hardly any spread.
"""
_CLOSE = 1.25
"""A look is left out if the planned rounds are fewer than so many times its own rounds."""


class Look(msgspec.Struct, frozen=True):
    """One look at the verdicts.

    A run that the clock ends before its plan may look once more, with ``planned`` equal to ``rounds``. Such a
    look spends the rest of alpha.
    """

    rounds: int
    """Number of rounds finished at the look."""
    planned: int
    """Number of rounds expected at the end of the run, by the clock alone."""


def levels(looks: Sequence[Look], *, alpha: float = ALPHA) -> list[float]:
    """Return the level of each look, so that the looks together spend at most ``alpha``.

    The levels add up to ``alpha`` if the last look has all planned rounds. A level is 0 if earlier looks have
    already spent it.
    """
    shares, spent = [], 0.0
    for look in looks:
        allowed = min(1.0, look.rounds / look.planned) ** 2
        shares.append(alpha * max(0.0, allowed - spent))
        spent = max(spent, allowed)
    return shares


def look_rounds(most: int) -> Iterator[int]:
    """Yield the rounds up to ``most`` that have a look: 5, 8, 12, 18, each about 1.5 times the last."""
    rounds = next_look(0)
    while rounds <= most:
        yield rounds
        rounds = next_look(rounds)


def next_look(done: int) -> int:
    """Return the number of rounds at the first look after ``done`` rounds."""
    rounds = FIRST_LOOK
    while rounds <= done:
        rounds += math.ceil(rounds / 2)
    return rounds


def is_close_to_the_end(look: Look) -> bool:
    """Return whether a look is left out because the look at the end has hardly more rounds.

    The look at the end then gets its share of alpha.
    """
    return look.rounds < look.planned < _CLOSE * look.rounds

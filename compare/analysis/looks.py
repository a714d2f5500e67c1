"""Choose when the verdicts of a run are judged, and how much of alpha each such look may spend.

Alpha is the probability that a run shows any false difference. The method is that of Lan & DeMets, "Discrete
sequential boundaries for clinical trials", Biometrika 70 (1983). The share of alpha that is spent by a look
is t^2, where t is its share of the planned rounds (the power family of Kim & DeMets, Biometrika 74, 1987).
The level of a look is what it may spend (Bonferroni over looks), so the sum of levels holds for any
dependence between looks. During a run, time may change the number of planned rounds, but figures may not.
``docs/method.md`` tells why looks are few, and why most of alpha is kept for the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

ALPHA = 0.05
"""A run may show any false difference with at most this probability."""
FIRST_LOOK = 5
"""Number of rounds at the first of several looks.

Fewer rounds may by chance all have nearly the same ratio, for example if each launch is either quick or slow.
"""
_CLOSE_TO_END = 1.25
"""A look is left out if the run is planned to have less than this multiple of the look's rounds."""


class Look(msgspec.Struct, frozen=True):
    """One look: a number of rounds after which the verdicts are judged.

    If the clock ends a run before its plan, the run has one more look, whose ``planned`` equals ``rounds``.
    It spends the rest of alpha.
    """

    rounds: int
    """Number of rounds that are finished at the look."""
    planned: int
    """Number of rounds that the run was expected to have at its end, by the clock alone."""


def levels(looks: Sequence[Look], *, alpha: float = ALPHA) -> list[float]:
    """Return the share of ``alpha`` that each look may spend, which is the level of its tests.

    The levels add up to ``alpha`` if the last look has all planned rounds, and else to less. A level is 0 if
    earlier looks have already spent it.
    """
    shares, spent = [], 0.0
    for look in looks:
        allowed = min(1.0, look.rounds / look.planned) ** 2
        shares.append(alpha * max(0.0, allowed - spent))
        spent = max(spent, allowed)
    return shares


def look_rounds(most: int) -> Iterator[int]:
    """Yield the numbers of rounds with a look, up to ``most``: 5, 8, 12, 18 and so on."""
    rounds = next_look(0)
    while rounds <= most:
        yield rounds
        rounds = next_look(rounds)


def next_look(done: int) -> int:
    """Return the number of rounds of the first look that comes after ``done`` rounds."""
    rounds = FIRST_LOOK
    while rounds <= done:
        rounds += math.ceil(rounds / 2)
    return rounds


def is_close_to_the_end(look: Look) -> bool:
    """Return whether a look is left out because the end of the run has hardly more rounds.

    The look at the end then gets the share of alpha of both.
    """
    return look.rounds < look.planned < _CLOSE_TO_END * look.rounds

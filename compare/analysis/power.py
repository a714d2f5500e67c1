"""Compute the minimum difference that a run is likely to find.

Power is the probability that a true difference is found. Its usual value is 0.8 (J. Cohen, "Statistical
power analysis for the behavioral sciences", 2nd ed., 1988). The t statistic of n paired rounds follows the
noncentral t distribution. Its noncentrality is difference * sqrt(n) / spread (N. L. Johnson and B. L. Welch,
"Applications of the non-central t-distribution", Biometrika 31, 1940). At one noncentrality, t exceeds its
critical value with that probability. The difference is this noncentrality times spread / sqrt(n).

The sum of two central quantiles, t(1 - a / 2) + t(0.8), approximates the noncentrality. At five rounds and
a = 0.0125 it is 5 % too small.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from compare.analysis.budget import is_oversubscribed, looks, planned_rounds, rounds_done
from compare.analysis.looks import ALPHA, FIRST_LOOK, Look, levels
from compare.analysis.ranking import paired_log_ratios
from compare.analysis.verdict import MARGIN
from compare.schema.results import Run

POWER = 0.8
"""Probability of finding a difference."""
_LARGEST_LOG = 700.0
_TWO_ROUNDS = 2


class Power(msgspec.Struct, frozen=True):
    """What a run finds with a probability of `POWER`."""

    rounds: int
    """Number of rounds; `FIRST_LOOK` for a run that has fewer."""
    difference: float
    """Minimum relative difference that is called faster or slower."""


def find_power(run: Run) -> Power | None:
    """Return what the rounds so far can find.

    A run with fewer rounds than `FIRST_LOOK` finds nothing. Its figure is for that number of rounds.
    """
    return _power(run, looks(run) if rounds_done(run) >= FIRST_LOOK else [Look(FIRST_LOOK, FIRST_LOOK)])


def plan_power(run: Run) -> Power | None:
    """Return what the planned rounds will find, by the spread so far."""
    planned = max(FIRST_LOOK, planned_rounds(run))
    first = planned if run.config.limit_seconds is None else FIRST_LOOK
    return _power(run, [Look(rounds, planned) for rounds in range(first, planned + 1)])


def _power(run: Run, at: Sequence[Look]) -> Power | None:
    """Return the power at some looks; None where nothing is judged.

    The spread is pooled over the arms. With two rounds, an arm alone has a single degree of freedom.
    """
    if is_oversubscribed(run) or run.config.comparisons is not None:
        return None
    ratios = list(paired_log_ratios(run, run.config.baseline).values())
    if not ratios or len(ratios[0]) < _TWO_ROUNDS:
        return None
    spread = math.sqrt(statistics.fmean(map(statistics.variance, ratios)))
    return Power(at[-1].rounds, smallest_difference(spread, at, arms=len(ratios)))


def smallest_difference(
    spread: float, at: Sequence[Look], *, arms: int, alpha: float = ALPHA, margin: float = MARGIN
) -> float:
    """Return the smallest relative difference that is found.

    Each arm is tested at Holm's first step, ``alpha / arms``, which is the strictest. One look that finds
    the difference is enough, so the best look counts. All together find it more often. A difference also
    needs an estimate beyond the margin. Where that is as hard as the test, the probability is as low as 0.7.

    Args:
        spread: standard deviation of the log ratios of an arm.
        at: all looks, from `FIRST_LOOK` rounds on.
        arms: number of arms that are compared with the baseline.
        alpha: see `judge`.
        margin: see `judge`.
    """
    from scipy.special import nctdtrinc, ndtri, stdtrit

    best = math.inf
    for look, level in zip(at, levels(at, alpha=alpha), strict=True):
        if level:
            freedom = look.rounds - 1
            error = spread / math.sqrt(look.rounds)
            significant = error * nctdtrinc(freedom, 1 - POWER, -stdtrit(freedom, level / arms / 2))
            beyond = math.log1p(margin) + error * ndtri(POWER)
            best = min(best, max(significant, beyond))
    return math.expm1(min(best, _LARGEST_LOG))

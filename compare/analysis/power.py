"""Compute the smallest difference that a verdict would have found.

Power is the probability that a true difference is found. Its usual value is 0.8 (J. Cohen, "Statistical
power analysis for the behavioral sciences", 2nd ed., 1988). The t statistic of n paired rounds follows the
noncentral t distribution. Its noncentrality is difference * sqrt(n) / spread (N. L. Johnson and B. L. Welch,
"Applications of the non-central t-distribution", Biometrika 31, 1940). At one noncentrality, t exceeds its
critical value with a probability of 0.8. The difference is this noncentrality times spread / sqrt(n).

The sum of two central quantiles, t(1 - a / 2) + t(0.8), approximates the noncentrality. At five rounds and
a = 0.0125 it is 5 % too small.
"""

from __future__ import annotations

import math

from compare.analysis.looks import FIRST_LOOK
from compare.analysis.verdict import MARGIN, Verdict

POWER = 0.8
"""Probability of finding a difference."""
_LARGEST_LOG = 700.0


def would_have_seen(verdict: Verdict) -> float | None:
    """Return the smallest relative difference that a verdict finds with a probability of `POWER`.

    The difference follows from the spread, the number of rounds and the level of the arm's own interval.
    Earlier looks may find such a difference too, so the true probability is a little higher. None before
    `FIRST_LOOK` rounds, which settle nothing, and for a verdict that uneven load may explain.
    """
    from scipy.special import stdtrit

    low, high = verdict.low, verdict.high
    if low is None or high is None or verdict.n < FIRST_LOOK or verdict.uneven_load:
        return None
    alpha, half_width = 1 - verdict.level, math.log(high / low) / 2
    error = half_width / -float(stdtrit(verdict.n - 1, alpha / 2))
    return smallest_difference(error, verdict.n, alpha=alpha, margin=verdict.margin)


def smallest_difference(error: float, rounds: int, *, alpha: float, margin: float = MARGIN) -> float:
    """Return the smallest relative difference that one test finds with a probability of `POWER`.

    To be found, a difference also needs an estimate beyond the margin. If that is as hard to reach as
    significance, the true probability is as low as 0.7.

    Args:
        error: standard error of the mean log ratio of an arm.
        rounds: number of paired rounds.
        alpha: two-sided level of the test.
        margin: largest relative difference that does not matter, as in `judge`.
    """
    from scipy.special import nctdtrinc, ndtri, stdtrit

    freedom = rounds - 1
    significant = error * nctdtrinc(freedom, 1 - POWER, -stdtrit(freedom, alpha / 2))
    beyond = math.log1p(margin) + error * ndtri(POWER)
    return math.expm1(min(max(significant, beyond), _LARGEST_LOG))

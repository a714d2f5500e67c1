"""Judge what noise hides: every difference of a run, or those below a size, and what would help.

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
from collections.abc import Sequence

from compare.analysis.budget import elapsed_seconds, is_oversubscribed
from compare.analysis.figures import Figures
from compare.analysis.load import find_load_dependence
from compare.analysis.looks import FIRST_LOOK
from compare.analysis.verdict import LARGEST_LOG, Verdict
from compare.schema.results import Run

POWER = 0.8
"""Probability of finding a difference."""
NOISE_LIMIT = 0.25
"""Largest half-width of an interval that still tells something; 0.25 is a factor of 1.25 either way."""
_FEWEST_ROUNDS = 3
"""Fewest rounds with which verdicts, and not noisy rounds, show whether noise hides all."""
_BUDGET_STEP_SECONDS = 60


def hides_all(figures: Figures, verdicts: Sequence[Verdict]) -> bool:
    """Return whether noise hides every difference between the arms.

    It does if every verdict is unresolved after `FIRST_LOOK` rounds or more, with an interval that contains 1
    and is wider than `NOISE_LIMIT`. A ratio that is shown to depend on the load is a difference too. In a run
    of one or two rounds, noise hides all if every round is noisy.

    The answer is False for an A/A test, which measures the noise itself. It is False too for a single arm,
    and if threads outnumber the cores, because then no arm is ranked in any case.
    """
    run = figures.run
    if run.config.comparisons is not None or is_oversubscribed(run) or len(run.config.arms) == 1:
        return False
    rounds = len({launch.round for launch in run.launches})
    if rounds < _FEWEST_ROUNDS:
        return len(figures.noisy_rounds) == rounds > 0
    open_and_wide = bool(verdicts) and all(map(_is_open_and_wide, verdicts))
    return open_and_wide and not find_load_dependence(figures)


def _is_open_and_wide(verdict: Verdict) -> bool:
    if verdict.kind != "unresolved" or verdict.n < FIRST_LOOK:
        return False
    low, high = verdict.low, verdict.high
    return low is None or high is None or (low <= 1 <= high and half_width(low, high) > 1 + NOISE_LIMIT)


def half_width(low: float, high: float) -> float:
    """Return the factor by which an interval of ratios reaches up or down from its geometric centre."""
    return math.sqrt(high / low)


def narrowest(verdicts: Sequence[Verdict]) -> float | None:
    """Return the smallest half-width from `FIRST_LOOK` rounds on, as a factor; None without an interval."""
    judged = [verdict for verdict in verdicts if verdict.n >= FIRST_LOOK]
    return min((half_width(v.low, v.high) for v in judged if v.low and v.high), default=None)


def budget_to_rank(run: Run, width: float) -> int:
    """Return about how many seconds a run takes until an interval's half-width is below the limit.

    ``width`` is the half-width so far, as a factor. Its logarithm falls with the square root of the rounds,
    which go on at the pace so far. The result is at least twice the time so far, in whole minutes.
    """
    factor = max(2.0, (math.log(width) / math.log1p(NOISE_LIMIT)) ** 2)
    return math.ceil(elapsed_seconds(run) * factor / _BUDGET_STEP_SECONDS) * _BUDGET_STEP_SECONDS


def would_have_seen(verdict: Verdict) -> float | None:
    """Return the relative difference that a run like this one would find with a probability of `POWER`.

    The difference follows from the spread, the number of rounds and the level of the arm's own interval.
    Earlier looks may find such a difference too, so the true probability is a little higher. To be found, a
    difference also needs an estimate beyond the margin. If that is as hard to reach as significance, the true
    probability is as low as 0.7.

    None before `FIRST_LOOK` rounds, which settle nothing, and for a verdict that uneven load may explain.
    """
    from scipy.special import nctdtrinc, ndtri, stdtrit

    low, high = verdict.low, verdict.high
    if low is None or high is None or verdict.n < FIRST_LOOK or verdict.uneven_load:
        return None
    freedom, critical = verdict.n - 1, -float(stdtrit(verdict.n - 1, (1 - verdict.level) / 2))
    standard_error = math.log(high / low) / 2 / critical
    significant = standard_error * nctdtrinc(freedom, 1 - POWER, critical)
    beyond = math.log1p(verdict.margin) + standard_error * ndtri(POWER)
    return math.expm1(min(max(significant, beyond), LARGEST_LOG))

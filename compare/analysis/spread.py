"""Estimate how the turns and the launches of arms spread, from finished cohorts.

A cohort is the launches of one round, which take turns. The logarithm of a step time is the sum of an effect
of the arm, one of the pass (the speed of the machine at that time), and the noise of the turn. Two arms do
not show which of them is the noisy one. Three or more do: F. E. Grubbs, "On estimating precision of measuring
instruments and product variability", Journal of the American Statistical Association 43 (1948). The noise of
a turn is assumed to fall with the root of its length.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from compare.analysis.figures import LaunchFigures
from compare.schema.results import Launch, Run

_FEWEST_ARMS = 3
_FEWEST_TURNS = 2
_LEAST_SHARE = 0.25
"""Smallest spread of an arm relative to the largest, because few turns give a rough estimate."""


def turn_spreads(run: Run) -> dict[str, float]:
    """Return, by arm, the standard deviation of ln(step time) that turns of one second would have.

    It is the root of the mean variance over cohorts. Negative variances of a cohort count as they are, so
    that this mean has no bias. No spread is below a quarter of the largest. All spreads are 1 if no cohort
    has two passes, or if no mean is positive.
    """
    labels = [arm.label for arm in run.config.arms]
    variances = [found for launches in cohorts(run) if (found := _variances(launches))]
    if not variances:
        return dict.fromkeys(labels, 1.0)
    means = {label: statistics.fmean(cohort[label] for cohort in variances) for label in labels}
    largest = max(means.values())
    if largest <= 0:
        return dict.fromkeys(labels, 1.0)
    return {label: math.sqrt(max(mean, _LEAST_SHARE**2 * largest)) for label, mean in means.items()}


def launch_variance(run: Run, arm: str, other: str) -> float | None:
    """Return the variance between cohorts of two arms' mean log ratio, beyond what their turns explain.

    The result may be negative by chance. It is None with fewer than two cohorts of two passes.
    """
    means, explained = [], []
    for launches in cohorts(run):
        of = {launch.arm: LaunchFigures(launch).turns for launch in launches}
        ratios = [
            math.log(of[other][number].seconds / own.seconds)
            for number, own in of[arm].items()
            if number in of[other]
        ]
        if len(ratios) >= _FEWEST_TURNS:
            means.append(statistics.fmean(ratios))
            explained.append(statistics.variance(ratios) / len(ratios))
    if len(means) < _FEWEST_TURNS:
        return None
    return statistics.variance(means) - statistics.fmean(explained)


def cohorts(run: Run) -> list[list[Launch]]:
    """Return the launches of each round that has one launch of every arm."""
    of_round: dict[int, list[Launch]] = {}
    for launch in run.launches:
        of_round.setdefault(launch.round, []).append(launch)
    return [launches for launches in of_round.values() if len(launches) == len(run.config.arms)]


def _variances(launches: Sequence[Launch]) -> dict[str, float]:
    """Return, by arm, the variance of ln(step time) over the turns of one cohort, times a turn's seconds.

    A residual is what the means of arm and pass leave. Its variance is s^2 (1 - 2 / n) + S / n^2 for n arms,
    where s belongs to the arm and S is the sum of all s^2. Two arms get the same variance. The result is
    empty with one arm, or with fewer than two passes that all arms have.
    """
    times = {launch.arm: LaunchFigures(launch).turns for launch in launches}
    turns = sorted(set.intersection(*map(set, times.values())))
    n = len(times)
    if n < 2 or len(turns) < _FEWEST_TURNS:  # noqa: PLR2004 -- a pass of one arm has no residual
        return {}
    logs = {arm: [math.log(own[turn].seconds) for turn in turns] for arm, own in times.items()}
    of_pass = [statistics.fmean(column) for column in zip(*logs.values(), strict=True)]
    residuals = {
        arm: statistics.variance([x - mean for x, mean in zip(own, of_pass, strict=True)])
        for arm, own in logs.items()
    }
    total = sum(residuals.values()) * n / (n - 1)
    if n < _FEWEST_ARMS:
        own_variances = dict.fromkeys(residuals, total / n)
    else:
        own_variances = {arm: (v - total / n**2) / (1 - 2 / n) for arm, v in residuals.items()}
    return {launch.arm: own_variances[launch.arm] * _seconds_of_turn(launch) for launch in launches}


def _seconds_of_turn(launch: Launch) -> float:
    """Return the mean timed seconds of a turn, on the first rank of a launch."""
    blocks = [b for b in launch.ranks[0].blocks if b.mode == "training" and not b.phases]
    return sum(block.wall_ns for block in blocks) / 1e9 / len({block.turn for block in blocks})

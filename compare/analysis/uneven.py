"""Withhold the verdicts that uneven load may explain.

Another program may run while one arm trains, and rest while its rival does. No timing can tell that from a
slower arm. But the kernel counts the busy time of the CPUs in the turns of every arm. So each round has the
difference of other load between two arms. It is counted in cores, because a busy core delays the ranks of 64
CPUs as it delays those of two.

A load that comes and goes by chance widens a verdict's own interval. What misleads is a load that keeps step
with one arm. If it alone makes a ratio differ, its own difference is at least as clear. So a verdict is
withheld only where the t interval of that difference excludes zero, and its far end tells how much the load
may explain. Each end errs in 5 of 100. So few rounds, whose intervals are wide, withhold no more than many.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from compare.analysis.step_times import other_cores
from compare.analysis.verdict import Verdict
from compare.schema.arms import Arm
from compare.schema.results import Run

NEGLIGIBLE_CORES = 0.1
"""Difference in other load that does not matter.

On a quiet machine it is less. What is left there is the kernel's own work for an arm, and rounding.
"""
SLOWDOWN = 3.0
"""Steps that one busy core is taken to add to a step.

All ranks wait for the one that shares its core. It is more than was seen. On two cores, in four tries,
loops added 1.2 to 2.3 steps to those of two spinning ranks. They added 0.4 to one of ``ddp``.
"""
ONE_SIDED = 0.05
"""Level of each end of the load's interval."""


def withhold(run: Run, baseline: str, name: str, verdict: Verdict) -> Verdict:
    """Leave a verdict open if uneven load may explain it.

    The load of both arms is compared over the common rounds that the verdict has. A difference stands if the
    slower arm has less load. It stands too if its whole interval exceeds what the load can do.
    """
    if verdict.kind == "unresolved":
        return verdict
    arms = {arm.label: arm for arm in run.config.arms}
    own, other = _by_round(run, arms[name]), _by_round(run, arms[baseline])
    rounds = sorted(set(own) & set(other))[: verdict.n]
    if not may_explain([own[r] - other[r] for r in rounds], verdict):
        return verdict
    beside, beside_baseline = (statistics.fmean(load[r] for r in rounds) for load in (own, other))
    return msgspec.structs.replace(
        verdict,
        kind="unresolved",
        settled_after=None,
        rounds_to_settle=None,
        uneven_load=(beside, beside_baseline),
    )


def may_explain(differences: Sequence[float], verdict: Verdict) -> bool:
    """Return whether uneven load may have made the difference or equivalence of a verdict.

    Args:
        differences: other load beside the arm minus that beside the baseline, in cores; one value for each
            of two rounds or more.
        verdict: what the same rounds show.
    """
    low, high = _interval(differences)
    largest = max(-low, high)
    if low <= 0 <= high or largest <= NEGLIGIBLE_CORES:
        return False
    more = math.copysign(1, low)
    ends = filter(None, (verdict.low, verdict.speed_ratio, verdict.high))
    slower_by = min(-math.log(end) * more for end in ends)
    return verdict.kind == "equivalent" or 0 < slower_by <= math.log1p(SLOWDOWN * largest)


def _interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the t interval of the mean; each end is wrong in `ONE_SIDED` of all cases."""
    from scipy.special import stdtrit  # importing scipy would slow down the start of the parent

    n, mean = len(differences), statistics.fmean(differences)
    half = -float(stdtrit(n - 1, ONE_SIDED)) * statistics.stdev(differences) / math.sqrt(n)
    return mean - half, mean + half


def _by_round(run: Run, arm: Arm) -> dict[int, float]:
    """Return the other load beside the arm in each round, in cores."""
    return {launch.round: other_cores(launch) for launch in run.of(arm)}

"""Withhold the verdicts that uneven load may explain.

Another program may run while one arm trains, and rest while its rival does. No timing can tell that from a
slower arm. But the kernel counts the busy time of the CPUs in the turns of every arm. So each round gives a
difference of other load between two arms. It is counted in cores, because a busy core delays the ranks of 64
CPUs as it delays those of two.

A load that comes and goes by chance widens a verdict's own interval. What misleads is a load that keeps step
with one arm. If such a load alone makes a ratio differ, the loads differ at least as clearly. So a verdict is
withheld only if the t interval of the difference in load excludes zero. The far end of that interval shows
how much the load may explain. Each end is wrong in 5 of 100 cases. So few rounds, whose intervals are wide,
withhold no more verdicts than many.
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
"""Largest difference in other load that does not matter.

On a quiet machine the difference is smaller, because it is only the kernel's work for an arm, and rounding.
"""
SLOWDOWN = 3.0
"""Number of step times that one busy core is assumed to add to a step.

All ranks wait for the rank that shares its core. The value is more than was measured. On two cores, in four
tries, busy loops added 1.2 to 2.3 step times to a step of two spinning ranks, and 0.4 to one of ``ddp``.
"""
ONE_SIDED = 0.05
"""Probability that one end of the load's interval is wrong."""


def withhold(run: Run, baseline: str, name: str, verdict: Verdict) -> Verdict:
    """Return a verdict, which becomes *unresolved* if uneven load may explain it.

    Other load beside the two arms is compared over the common rounds that the verdict has. A difference
    stands if the slower arm has less load, or if its whole interval exceeds what the load can explain.
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
        verdict: the verdict on the arm from the same rounds.
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
    """Return the ends of the t interval of the mean; each is wrong with the probability `ONE_SIDED`."""
    from scipy.special import stdtrit  # importing scipy would slow down the start of the parent

    n, mean = len(differences), statistics.fmean(differences)
    half = -float(stdtrit(n - 1, ONE_SIDED)) * statistics.stdev(differences) / math.sqrt(n)
    return mean - half, mean + half


def _by_round(run: Run, arm: Arm) -> dict[int, float]:
    """Return by round how many cores other processes used beside the arm."""
    return {launch.round: other_cores(launch) for launch in run.of(arm)}

"""Judge what the load of the machine does to ratios: some change with it, and some it may explain.

An arm that polls may lead on a quiet machine and fall behind on a busy one. One mean ratio hides that. If
arms take turns, the control shows the load of each pass. Where other programs take the control's cores, its
wall time grows and its CPU time does not. So the ratio of every pass is regressed on the control's wall time
over its CPU time, both on the log scale. The control's step time would show the load less well, because it
also changes with the speed of the machine.

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

from compare.analysis.budget import is_oversubscribed
from compare.analysis.estimate import t_interval
from compare.analysis.figures import Figures
from compare.analysis.verdict import Verdict

LEVEL = 0.001
"""Level of the test, for all arms together.

The test takes passes as independent. Passes of one cohort are alike, so the true level is weaker.
"""
CHANGES = 0.25
"""Smallest relative change of the ratio between quiet and busy passes that is reported."""
LOAD_CHANGES = 0.1
"""Smallest relative change of the load between these passes; on a quiet machine it is smaller."""
_FEWEST_PASSES = 12
_TENTH = 10
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


class LoadDependence(msgspec.Struct, frozen=True, kw_only=True):
    """An arm whose ratio to the baseline changes with the load."""

    arm: str
    quiet_cores: float
    """The control's CPU time over its wall time: geometric mean over the quietest tenth of all passes."""
    busy_cores: float
    """The same over the busiest tenth of all passes."""
    quiet_ratio: float
    """Baseline's step time over the arm's at the load of the quietest passes, by the fitted line."""
    busy_ratio: float
    """The same at the load of the busiest passes."""
    p: float
    """Two-sided p of the hypothesis that the ratio does not change with the load."""


def find_load_dependence(figures: Figures) -> list[LoadDependence]:
    """Find the arms whose ratio to the baseline changes with the load.

    The list is empty without turns, without a control, if the control is the baseline, and if threads
    outnumber the cores. An arm with fewer than 12 passes is not tested.
    """
    run, rivals = figures.run, figures.run.config.rivals
    control, baseline = run.config.control, run.config.baseline
    in_turns = run.interleaved.mode == "blocks"
    if control is None or baseline == control.label or is_oversubscribed(run) or not in_turns:
        return []
    of_control, of_baseline = figures.turns(control.label), figures.turns(baseline)
    found = []
    for rival in rivals:
        own = figures.turns(rival.label)
        passes = [
            (-math.log(of_control[one].cores), math.log(of_baseline[one].seconds / own[one].seconds))
            for one in own.keys() & of_baseline.keys() & of_control.keys()
            if of_control[one].cores > 0
        ]
        if len(passes) >= _FEWEST_PASSES:
            found.append(_judge(rival.label, passes, level=LEVEL / len(rivals)))
    return [dependence for dependence in found if dependence]


def _judge(arm: str, passes: Sequence[tuple[float, float]], *, level: float) -> LoadDependence | None:
    """Judge one arm by the loads of passes and its ratios in them, both as logarithms."""
    loads, ratios = zip(*sorted(passes), strict=True)
    tenth = max(1, len(loads) // _TENTH)
    quiet, busy = statistics.fmean(loads[:tenth]), statistics.fmean(loads[-tenth:])
    if busy - quiet < math.log1p(LOAD_CHANGES):
        return None
    slope, intercept = statistics.linear_regression(loads, ratios)
    if abs(slope) * (busy - quiet) < math.log1p(CHANGES):
        return None
    if (p := _p_of_no_slope(loads, ratios)) > level:
        return None
    return LoadDependence(
        arm=arm,
        quiet_cores=math.exp(-quiet),
        busy_cores=math.exp(-busy),
        quiet_ratio=math.exp(intercept + slope * quiet),
        busy_ratio=math.exp(intercept + slope * busy),
        p=p,
    )


def _p_of_no_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the two-sided p of the t test that a regression's slope is zero.

    Neither ``x`` nor ``y`` may be constant.
    """
    from scipy.special import stdtr

    r = statistics.correlation(x, y)
    rest = max(0.0, 1 - r * r)
    t = abs(r) * math.sqrt((len(x) - 2) / rest) if rest else math.inf
    return 2 * float(stdtr(len(x) - 2, -t))


def withhold(figures: Figures, baseline: str, name: str, verdict: Verdict) -> Verdict:
    """Return a verdict, which becomes *unresolved* if uneven load may explain it.

    Other load beside the two arms is compared over the common rounds that the verdict has. A difference
    stands if the slower arm has less load, or if its whole interval exceeds what the load can explain.
    """
    if verdict.kind == "unresolved":
        return verdict
    pairs = figures.pairs(name, baseline)[: verdict.n]
    loads = [(own.other_cores, other.other_cores) for own, other in pairs]
    if not may_explain([beside - beside_baseline for beside, beside_baseline in loads], verdict):
        return verdict
    beside, beside_baseline = map(statistics.fmean, zip(*loads, strict=True))
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
    low, high = t_interval(differences, ONE_SIDED)
    largest = max(-low, high)
    if low <= 0 <= high or largest <= NEGLIGIBLE_CORES:
        return False
    more = math.copysign(1, low)
    ends = filter(None, (verdict.low, verdict.speed_ratio, verdict.high))
    slower_by = min(-math.log(end) * more for end in ends)
    return verdict.kind == "equivalent" or 0 < slower_by <= math.log1p(SLOWDOWN * largest)

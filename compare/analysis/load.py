"""Find ratios that change with the load of the machine.

An arm that polls may lead on a quiet machine and fall behind on a busy one. One mean ratio hides that. If
arms take turns, the control shows the load of each pass. Where other programs take the control's cores, its
wall time grows and its CPU time does not. So the ratio of every pass is regressed on the control's wall time
over its CPU time, both on the log scale. The control's step time would show the load less well, because it
also changes with the speed of the machine.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from compare.analysis.budget import is_oversubscribed
from compare.analysis.step_times import turn_cores, turn_seconds
from compare.schema.arms import Arm
from compare.schema.results import Launch, Run

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


class _Pass(NamedTuple):
    """Two logarithms of one pass, which is one turn of every arm."""

    load: float
    """Logarithm of the control's wall time over its CPU time."""
    ratio: float
    """Logarithm of the baseline's step time over the arm's."""


def find_load_dependence(run: Run) -> list[LoadDependence]:
    """Find the arms whose ratio to the baseline changes with the load.

    The list is empty without turns, without a control, if the control is the baseline, and if threads
    outnumber the cores. An arm with fewer than 12 passes is not tested.
    """
    control, baseline = run.config.control, run.config.baseline
    if control is None or is_oversubscribed(run) or run.interleaved.mode != "blocks":
        return []
    times = {arm.label: _by_pass(run, arm, turn_seconds) for arm in run.config.arms}
    cores = _by_pass(run, control, turn_cores)
    rivals = [arm.label for arm in run.config.rivals]
    found = []
    for rival in rivals:
        common = set(cores) & set(times[baseline]) & set(times[rival])
        passes = sorted(one for one in common if cores[one] > 0)
        if baseline == control.label or len(passes) < _FEWEST_PASSES:
            continue
        seen = [
            _Pass(
                load=-math.log(cores[one]),
                ratio=math.log(times[baseline][one] / times[rival][one]),
            )
            for one in passes
        ]
        found += _judge(rival, seen, level=LEVEL / len(rivals))
    return found


def _by_pass(
    run: Run, arm: Arm, figure: Callable[[Launch], dict[int, float]]
) -> dict[tuple[int, int], float]:
    """Return a figure of each of the arm's turns, by (round, turn)."""
    return {(launch.round, turn): each for launch in run.of(arm) for turn, each in figure(launch).items()}


def _judge(arm: str, passes: Sequence[_Pass], *, level: float) -> list[LoadDependence]:
    ordered = sorted(passes)
    loads, ratios = [one.load for one in ordered], [one.ratio for one in ordered]
    tenth = max(1, len(ordered) // _TENTH)
    quiet, busy = statistics.fmean(loads[:tenth]), statistics.fmean(loads[-tenth:])
    if busy - quiet < math.log1p(LOAD_CHANGES):
        return []
    slope, intercept = statistics.linear_regression(loads, ratios)
    if abs(slope) * (busy - quiet) < math.log1p(CHANGES):
        return []
    if (p := _p_of_no_slope(loads, ratios)) > level:
        return []
    return [
        LoadDependence(
            arm=arm,
            quiet_cores=math.exp(-quiet),
            busy_cores=math.exp(-busy),
            quiet_ratio=math.exp(intercept + slope * quiet),
            busy_ratio=math.exp(intercept + slope * busy),
            p=p,
        )
    ]


def _p_of_no_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the two-sided p of the t test that a regression's slope is zero.

    Neither ``x`` nor ``y`` may be constant.
    """
    from scipy.special import stdtr

    r = statistics.correlation(x, y)
    rest = max(0.0, 1 - r * r)
    t = abs(r) * math.sqrt((len(x) - 2) / rest) if rest else math.inf
    return 2 * float(stdtr(len(x) - 2, -t))

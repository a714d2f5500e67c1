"""Find ratios that change with the load of the machine.

An arm that polls may lead on a quiet machine and fall behind on a busy one. One mean ratio hides that. In
turns, the control shows the load of each pass. Where other programs take its cores, its wall time grows and
its CPU time does not. The ratio of every pass is regressed on wall time over CPU time, both on the log scale.
The control's step time would show the load less well: it also changes with the speed of the machine.
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

It takes passes as independent. Those of one cohort are alike, so the true level is weaker.
"""
CHANGES = 0.25
"""Minimum change of the ratio between quiet and busy passes."""
LOAD_CHANGES = 0.1
"""Minimum change of the load between them; a quiet machine has less."""
_FEWEST_PASSES = 12
_TENTH = 10


class LoadDependence(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio that changes with the load."""

    arm: str
    quiet_cores: float
    """CPU time over wall time of the control, in the quietest passes.

    They are a tenth of all passes. It is the geometric mean.
    """
    busy_cores: float
    """The same of the busiest passes."""
    quiet_ratio: float
    """Baseline's step time over the arm's at that load.

    It is read from the fitted line.
    """
    busy_ratio: float
    p: float
    """Two-sided p of no slope."""


class _Pass(NamedTuple):
    """Logarithms of one pass."""

    load: float
    """Of wall time over CPU time of the control."""
    ratio: float
    """Of the baseline's step time over the arm's."""


def find_load_dependence(run: Run) -> list[LoadDependence]:
    """Find the arms whose ratio to the baseline changes with the load."""
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
    """Return a figure of the arm's turns, by round and turn."""
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
    """Return the two-sided p of the t test of a regression's slope.

    Neither may be constant.
    """
    from scipy.special import stdtr

    r = statistics.correlation(x, y)
    rest = max(0.0, 1 - r * r)
    t = abs(r) * math.sqrt((len(x) - 2) / rest) if rest else math.inf
    return 2 * float(stdtr(len(x) - 2, -t))

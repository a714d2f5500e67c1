"""Find ratios that change with the load of the machine.

An arm that polls may lead on a quiet machine and fall behind on a busy one. One mean ratio hides that. In
turns, the control shows the load of each pass: its step takes longer while other programs run. The ratio of
every pass is regressed on it, both on the log scale.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from compare.analysis.budget import is_oversubscribed
from compare.analysis.step_times import turn_seconds
from compare.schema.arms import Arm
from compare.schema.results import Run

LEVEL = 0.001
"""Level of the test, for all arms together.

A verdict has a weaker one, but passes of one cohort are alike.
"""
CHANGES = 0.25
"""Minimum change of the ratio between quiet and busy passes."""
_FEWEST_PASSES = 12
_TENTH = 10


class LoadDependence(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio that changes with the load."""

    arm: str
    quiet_seconds: float
    """Step time of the control in the quietest tenth of the passes."""
    busy_seconds: float
    """The same in the busiest tenth."""
    quiet_ratio: float
    """Baseline's step time over the arm's where the control is that quick."""
    busy_ratio: float
    p: float
    """Two-sided p of no slope."""


def find_load_dependence(run: Run) -> list[LoadDependence]:
    """Find the arms whose ratio to the baseline changes with the load."""
    control, baseline = run.config.control, run.config.baseline
    if control is None or is_oversubscribed(run) or run.interleaved.mode != "blocks":
        return []
    times = {arm.label: _by_pass(run, arm) for arm in run.config.arms}
    rivals = [arm.label for arm in run.config.arms if arm.synchronises and arm.label != baseline]
    found = []
    for rival in rivals:
        passes = sorted(set(times[control.label]) & set(times[baseline]) & set(times[rival]))
        if baseline == control.label or len(passes) < _FEWEST_PASSES:
            continue
        load = [math.log(times[control.label][one]) for one in passes]
        ratio = [math.log(times[baseline][one] / times[rival][one]) for one in passes]
        found += _judge(rival, load, ratio, level=LEVEL / len(rivals))
    return found


def _by_pass(run: Run, arm: Arm) -> dict[tuple[int, int], float]:
    """Return the arm's step time in each turn, by round and turn."""
    return {
        (launch.round, turn): seconds
        for launch in run.of(arm)
        for turn, seconds in turn_seconds(launch).items()
    }


def _judge(arm: str, load: Sequence[float], ratio: Sequence[float], *, level: float) -> list[LoadDependence]:
    from scipy.special import stdtr

    n, mean_load, mean_ratio = len(load), statistics.fmean(load), statistics.fmean(ratio)
    spread = sum((x - mean_load) ** 2 for x in load)
    if not spread:
        return []
    slope = sum((x - mean_load) * (y - mean_ratio) for x, y in zip(load, ratio, strict=True)) / spread
    residuals = [y - mean_ratio - slope * (x - mean_load) for x, y in zip(load, ratio, strict=True)]
    error = math.sqrt(sum(r * r for r in residuals) / (n - 2) / spread)
    p = 2 * float(stdtr(n - 2, -abs(slope) / error)) if error else 0.0
    ordered = sorted(load)
    tenth = max(1, n // _TENTH)
    quiet, busy = statistics.fmean(ordered[:tenth]), statistics.fmean(ordered[-tenth:])
    if p > level or abs(slope) * (busy - quiet) < math.log1p(CHANGES):
        return []
    return [
        LoadDependence(
            arm=arm,
            quiet_seconds=math.exp(quiet),
            busy_seconds=math.exp(busy),
            quiet_ratio=math.exp(mean_ratio + slope * (quiet - mean_load)),
            busy_ratio=math.exp(mean_ratio + slope * (busy - mean_load)),
            p=p,
        )
    ]

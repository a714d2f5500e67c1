"""Write the lines about arms that took turns."""

from __future__ import annotations

from compare.analysis.load import LoadDependence
from compare.analysis.waiting import WAITING_CORES_LIMIT, TurnsSummary
from compare.schema.results import Run


def load_dependence(run: Run, found: list[LoadDependence]) -> list[str]:
    """Return a warning for each arm whose ratio to the baseline depends on the load."""
    baseline = run.config.baseline
    return [
        f"The ratio of {one.arm} to {baseline} depends on the load. On a quiet machine {one.arm} has "
        f"{one.quiet_ratio:.2f}× the speed (a rank of none gets {one.quiet_cores:.2f} cores). "
        f"On a busy one it has {one.busy_ratio:.2f}× ({one.busy_cores:.2f} cores). "
        "The mean ratio describes neither."
        for one in found
    ]


def waiting(run: Run, summary: TurnsSummary | None) -> list[str]:
    """Return notes on arms whose turns outlasted the training, and on arms that used CPU in their waits."""
    if summary is None:
        return []
    return [*_trained(run, summary), *_awake(summary)]


def _trained(run: Run, summary: TurnsSummary) -> list[str]:
    if not summary.trained_on:
        return []
    steps, arms = run.config.total_steps, ", ".join(summary.trained_on)
    every = "every arm" if len(summary.trained_on) == len(run.config.arms) else arms
    return [f"Every arm trained {steps:,} steps. For timing only, {every} went on after them."]


def _awake(summary: TurnsSummary) -> list[str]:
    if not summary.awake:
        return []
    each = ", ".join(f"{arm} {cores * 100:.1f} %" for arm, cores in summary.awake.items())
    return [f"While they waited, arms took more than {WAITING_CORES_LIMIT * 100:g} % of a core: {each}."]

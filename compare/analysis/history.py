"""Follow every arm through many runs.

Step times of unlike runs have no trend. So runs are grouped by what they trained, and where.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import msgspec

from compare.analysis.budget import rounds_done
from compare.analysis.step_times import step_seconds
from compare.schema.results import Run


class RunEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a history."""

    name: str
    started_at: str
    group: str
    """What it trained, and where; runs of one group are alike."""
    rounds: int
    state: str
    """``complete``, ``interrupted``, ``unfinished``, or the kind of its failure.

    An unfinished run goes on, or its program was killed.
    """
    step_seconds: dict[str, float]
    """Of each arm: geometric mean over its launches."""


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """The step times of one arm over the runs of a group."""

    group: str
    arm: str
    step_seconds: list[float]
    """In the order of time."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of a folder, in the order of time."""

    runs: list[RunEntry]
    trends: list[Trend]
    """Of the arms that two runs or more of a group have."""
    unread: dict[str, str] = {}
    """Reasons of runs that could not be read, by name."""


def enter(name: str, run: Run) -> RunEntry:
    """Return the line of one run."""
    return RunEntry(
        name=name,
        started_at=run.started_at,
        group=_group(run),
        rounds=rounds_done(run),
        state=_state(run),
        step_seconds={
            arm.label: statistics.geometric_mean(map(step_seconds, launches))
            for arm in run.config.arms
            if (launches := run.of(arm))
        },
    )


def _state(run: Run) -> str:
    if run.complete:
        return "complete"
    kind = run.failure.kind if run.failure else "unfinished"
    return "interrupted" if kind == KeyboardInterrupt.__name__ else kind


def follow_runs(entries: Iterable[RunEntry], unread: dict[str, str]) -> History:
    """Sort the runs by time, and collect the trend of every arm."""
    runs = sorted(entries, key=lambda entry: (entry.started_at, entry.name))
    times: dict[tuple[str, str], list[float]] = {}
    for entry in runs:
        for arm, seconds in entry.step_seconds.items():
            times.setdefault((entry.group, arm), []).append(seconds)
    trends = [
        Trend(group=group, arm=arm, step_seconds=own) for (group, arm), own in times.items() if len(own) > 1
    ]
    return History(runs=runs, trends=trends, unread=unread)


def _group(run: Run) -> str:
    config = run.config
    parts = [
        config.model,
        f"{_plural(config.ranks, 'rank')} × {_plural(config.threads_per_rank, 'thread')}",
        config.device,
        f"batch {config.batch_size_per_rank}",
        f"{len(run.hosts)} hosts" if len(run.hosts) > 1 else "",
        f"× {config.accumulate} passes" if config.accumulate > 1 else "",
        config.precision if config.precision != "float32" else "",
        "compiled" if config.compile else "",
        f"rehearsed {run.network.rehearsed}" if run.network.rehearsed else "",
    ]
    return " · ".join(filter(None, parts))


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

"""Follow every arm through many runs.

Step times of unlike runs have no trend. So runs are grouped by what they trained, and where.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from compare.analysis.budget import rounds_done
from compare.analysis.diff import FREE_SETTINGS, cores_of, slots_of
from compare.analysis.step_times import step_seconds
from compare.analysis.summary import summarise
from compare.schema.results import Run
from compare.text import counted

_NAMED = {"model", "ranks", "threads_per_rank", "device", "batch_size_per_rank"}
"""Settings that the name of a group has in words."""


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
    noisy_rounds: int = 0
    """How many of them are noisy."""
    noise_hides_all: bool = False
    """The noise hides every difference between arms."""
    step_seconds: dict[str, float]
    """Of each arm: geometric mean over its launches."""


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """The step times of one arm over the runs of a group."""

    group: str
    arm: str
    step_seconds: list[float]
    """In the order of time."""
    noisy: int
    """How many of these runs are noisy."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of a folder, in the order of time."""

    runs: list[RunEntry]
    trends: list[Trend]
    """Of the arms that two runs or more of a group have."""
    unread: dict[str, str] = {}
    """Reasons of runs that could not be read, by name."""


def enter(name: str, run: Run) -> RunEntry:
    """Return the line of one run."""
    summary = summarise(run)
    return RunEntry(
        name=name,
        started_at=run.started_at,
        group=_group(run),
        rounds=rounds_done(run),
        state=_state(run),
        noisy_rounds=len(summary.noisy_rounds),
        noise_hides_all=summary.noise_hides_all,
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
    found: dict[tuple[str, str], list[RunEntry]] = {}
    for entry in runs:
        for arm in entry.step_seconds:
            found.setdefault((entry.group, arm), []).append(entry)
    trends = [
        Trend(
            group=group,
            arm=arm,
            step_seconds=[entry.step_seconds[arm] for entry in own],
            noisy=sum(bool(entry.noisy_rounds) or entry.noise_hides_all for entry in own),
        )
        for (group, arm), own in found.items()
        if len(own) > 1
    ]
    return History(runs=runs, trends=trends, unread=unread)


def _group(run: Run) -> str:
    """Name what `diff` requires of two runs; usual settings are left out."""
    config = run.config
    hosts = f"{len(run.hosts)} hosts of {_each(slots_of(run), 'rank')}" if len(run.hosts) > 1 else ""
    parts = [
        f"{config.model} on {run.dataset.name}",
        f"{counted(config.ranks, 'rank')} × {counted(config.threads_per_rank, 'thread')}",
        hosts,
        _device(run),
        _each(cores_of(run), "core"),
        f"batch {config.batch_size_per_rank}",
        *_unusual(run),
        f"rehearsed {run.network.rehearsed}" if run.network.rehearsed else "",
        "in turns" if run.interleaved.mode == "blocks" else "one launch after another",
    ]
    return " · ".join(filter(None, parts))


def _unusual(run: Run) -> Iterator[str]:
    """Name the other settings that decide a step time, if set."""
    for field in msgspec.structs.fields(run.config):
        value = getattr(run.config, field.name)
        if field.name not in FREE_SETTINGS | _NAMED and value != field.default:
            yield f"{field.name} {value}"


def _device(run: Run) -> str:
    """Return the names of the devices that the ranks attest."""
    names = {str(rank.attestation.get("device")) for launch in run.launches for rank in launch.ranks}
    return ", ".join(sorted(names - {"None"})) or run.config.device


def _each(numbers: Sequence[int], noun: str) -> str:
    """Count a noun for each host, or once where all agree."""
    return f"{'+'.join(map(str, numbers))} {noun}s" if len({*numbers}) > 1 else counted(numbers[0], noun)

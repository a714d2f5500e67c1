"""Follow every arm through many runs.

Step times of unlike runs cannot be compared. So runs are grouped by what they trained, and on which machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from compare.analysis.budget import cores_of, rounds_done
from compare.analysis.change import FREE_SETTINGS
from compare.analysis.figures import Figures
from compare.analysis.summary import summarise
from compare.schema.results import Run
from compare.text import counted

_NAMED = {"model", "ranks", "threads_per_rank", "device", "batch_size_per_rank"}
"""Settings that a group's name always states, in words of their own."""


class RunEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a history."""

    name: str
    started_at: str
    group: str
    """What the run trained and on which machines, as text; runs with the same text are alike."""
    rounds: int
    state: str
    """``complete``, ``interrupted``, ``unfinished``, or the kind of its failure.

    An unfinished run still goes on, or its process was killed.
    """
    noisy_rounds: int = 0
    """Number of these rounds that are noisy."""
    noise_hides_all: bool = False
    """Whether noise hides every difference between arms."""
    step_seconds: dict[str, float]
    """Step time by label of the arm, as the tables of the run have it."""


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """The step times of one arm over the runs of a group."""

    group: str
    arm: str
    step_seconds: list[float]
    """Step time in each run, in order of the runs' starts."""
    noisy: int
    """Number of these runs that have noisy rounds, or whose noise hides every difference."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of a folder, in order of their starts."""

    runs: list[RunEntry]
    trends: list[Trend]
    """One trend for each arm that two or more runs of a group have."""
    unread: dict[str, str] = {}
    """Why runs could not be read, by their names."""


def enter(name: str, run: Run) -> RunEntry:
    """Return the entry of one run in a history."""
    summary = summarise(Figures(run))
    state = "complete" if run.complete else run.failure.kind if run.failure else "unfinished"
    return RunEntry(
        name=name,
        started_at=run.started_at,
        group=_group(run),
        rounds=rounds_done(run),
        state="interrupted" if state == KeyboardInterrupt.__name__ else state,
        noisy_rounds=len(summary.noisy_rounds),
        noise_hides_all=summary.noise_hides_all,
        step_seconds={arm.arm: arm.step_seconds.mean for arm in summary.arms},
    )


def follow_runs(entries: Iterable[RunEntry], unread: dict[str, str]) -> History:
    """Return the runs sorted by start, and the trend of each arm that two runs of a group have."""
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
    """Return the name of a run's group, which leaves out most settings that have their default."""
    config = run.config
    slots = [host.slots for host in run.hosts]
    attested = {str(rank.attestation.get("device")) for launch in run.launches for rank in launch.ranks}
    parts = [
        f"{config.model} on {run.dataset.name}",
        f"{counted(config.ranks, 'rank')} × {counted(config.threads_per_rank, 'thread')}",
        f"{len(slots)} hosts of {_each(slots, 'rank')}" if len(slots) > 1 else "",
        ", ".join(sorted(attested - {"None"})) or config.device,
        _each(cores_of(run), "core"),
        f"batch {config.batch_size_per_rank}",
        *_unusual(run),
        f"rehearsed {run.network.rehearsed}" if run.network.rehearsed else "",
        "in turns" if run.interleaved.mode == "blocks" else "one launch after another",
    ]
    return " · ".join(filter(None, parts))


def _unusual(run: Run) -> Iterator[str]:
    """Yield the other settings that influence a step time and do not have their default: ``name value``."""
    for field in msgspec.structs.fields(run.config):
        value = getattr(run.config, field.name)
        if field.name not in FREE_SETTINGS | _NAMED and value != field.default:
            yield f"{field.name} {value}"


def _each(numbers: Sequence[int], noun: str) -> str:
    """Write a number of things for each host, or once if all hosts agree: ``2+3 ranks``, ``2 ranks``."""
    return f"{'+'.join(map(str, numbers))} {noun}s" if len({*numbers}) > 1 else counted(numbers[0], noun)

"""Follow the step time of every arm through many runs.

Step times of unlike runs cannot be compared, so a group has only runs that trained the same on like machines.
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

_SETTINGS_IN_NAME = {"model", "ranks", "threads_per_rank", "device", "batch_size_per_rank"}
"""Settings that the name of a group always states, so they are not listed again as changed ones."""


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
    """How many of ``rounds`` are noisy."""
    noise_hides_all: bool = False
    """Whether noise hides every difference between arms."""
    step_seconds: dict[str, float]
    """Seconds per step by label of the arm, as the tables of the run have them."""


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """The step times of one arm over the runs of a group."""

    group: str
    arm: str
    step_seconds: list[float]
    """Seconds per step in each run, in order of the runs' starts."""
    noisy: int
    """Number of these runs that have noisy rounds, or whose noise hides every difference."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of a folder, in order of their starts."""

    runs: list[RunEntry]
    trends: list[Trend]
    """One trend for each arm that two or more runs of a group have."""
    unread: dict[str, str] = {}
    """Why runs could not be read, by their names."""


def entry_of(name: str, run: Run) -> RunEntry:
    """Return the entry of one run in a history."""
    summary = summarise(Figures(run))
    state = "complete" if run.complete else run.failure.kind if run.failure else "unfinished"
    return RunEntry(
        name=name,
        started_at=run.started_at,
        group=_group_name(run),
        rounds=rounds_done(run),
        state="interrupted" if state == KeyboardInterrupt.__name__ else state,
        noisy_rounds=len(summary.noisy_rounds),
        noise_hides_all=summary.noise_hides_all,
        step_seconds={arm.arm: arm.step_seconds.mean for arm in summary.arms},
    )


def follow_runs(entries: Iterable[RunEntry], unread: dict[str, str]) -> History:
    """Return the history of runs, with the trend of each arm that two or more runs of a group have.

    ``unread`` has the reason for each run that could not be read, by its name.
    """
    runs = sorted(entries, key=lambda entry: (entry.started_at, entry.name))
    by_arm: dict[tuple[str, str], list[RunEntry]] = {}
    for entry in runs:
        for arm in entry.step_seconds:
            by_arm.setdefault((entry.group, arm), []).append(entry)
    trends = [
        Trend(
            group=group,
            arm=arm,
            step_seconds=[entry.step_seconds[arm] for entry in entries_of_arm],
            noisy=sum(bool(entry.noisy_rounds) or entry.noise_hides_all for entry in entries_of_arm),
        )
        for (group, arm), entries_of_arm in by_arm.items()
        if len(entries_of_arm) > 1
    ]
    return History(runs=runs, trends=trends, unread=unread)


def _group_name(run: Run) -> str:
    """Return the name of a run's group: model, data, ranks, machines, and settings that were changed."""
    config = run.config
    slots = [host.slots for host in run.hosts]
    attested = {str(rank.attestation.get("device")) for launch in run.launches for rank in launch.ranks}
    parts = [
        f"{config.model} on {run.dataset.name}",
        f"{counted(config.ranks, 'rank')} × {counted(config.threads_per_rank, 'thread')}",
        f"{len(slots)} hosts of {_per_host(slots, 'rank')}" if len(slots) > 1 else "",
        ", ".join(sorted(attested - {"None"})) or config.device,
        _per_host(cores_of(run), "core"),
        f"batch {config.batch_size_per_rank}",
        *_changed_settings(run),
        f"rehearsed {run.network.rehearsed}" if run.network.rehearsed else "",
        "in turns" if run.interleaved.mode == "blocks" else "one launch after another",
    ]
    return " · ".join(filter(None, parts))


def _changed_settings(run: Run) -> Iterator[str]:
    """Yield ``name value`` for each other setting that influences a step time and is not at its default."""
    for field in msgspec.structs.fields(run.config):
        value = getattr(run.config, field.name)
        if field.name not in FREE_SETTINGS | _SETTINGS_IN_NAME and value != field.default:
            yield f"{field.name} {value}"


def _per_host(numbers: Sequence[int], noun: str) -> str:
    """Write the numbers of all hosts with a noun, or one if all are equal: ``2+3 ranks`` or ``2 ranks``."""
    return f"{'+'.join(map(str, numbers))} {noun}s" if len({*numbers}) > 1 else counted(numbers[0], noun)

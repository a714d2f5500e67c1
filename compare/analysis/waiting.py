"""Compute what arms cost each other while they wait for their turns."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import msgspec

from compare.schema.results import Launch, Run

WAITING_CORES_LIMIT = 0.02
"""Largest share of a core that all ranks of an arm may use together while it waits."""


class TurnsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the arms of a run cost each other while they waited."""

    waiting_cores: dict[str, float]
    """Cores that all ranks of an arm used together while it waited, by arm: mean over its launches."""
    memory_bytes: int
    """Largest sum of the peak memory of all ranks that ran in one round."""
    trained_on: list[str]
    """Labels of the arms whose turns went on after the training, for timing only."""

    @property
    def awake(self) -> dict[str, float]:
        """Return the cores of the arms that used more than the limit while they waited, by arm."""
        return {arm: cores for arm, cores in self.waiting_cores.items() if cores > WAITING_CORES_LIMIT}


def summarise_turns(run: Run) -> TurnsSummary | None:
    """Summarise the turns of a run; None if its arms took none."""
    if run.interleaved.mode != "blocks" or not run.launches:
        return None
    rounds = {launch.round for launch in run.launches}
    return TurnsSummary(
        waiting_cores={
            arm.label: statistics.fmean(map(_waiting_cores, run.of(arm)))
            for arm in run.config.arms
            if run.of(arm)
        },
        memory_bytes=max(_memory_bytes(la for la in run.launches if la.round == r) for r in rounds),
        trained_on=[
            arm.label
            for arm in run.config.arms
            if any(la.ranks[0].trained_steps > run.config.total_steps for la in run.of(arm))
        ],
    )


def _waiting_cores(launch: Launch) -> float:
    return sum(rank.waited_cpu_ns / rank.waited_ns for rank in launch.ranks if rank.waited_ns)


def _memory_bytes(launches: Iterable[Launch]) -> int:
    return sum(rank.whole_peak_memory_bytes for launch in launches for rank in launch.ranks)

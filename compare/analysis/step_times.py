"""Figures of one launch: step times, phases, collectives, other CPU load."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compare.schema.results import Block, Launch, Mode, RankResult

FOREIGN_LIMIT = 0.10
"""Share of a host's CPUs that others may use while a launch is measured; above it, it is disturbed."""
_TRIMMED = 0.1
"""Of the steps of a phased block, the slowest: one interruption must not pass for a phase."""


def step_seconds(launch: Launch, mode: Mode = "training") -> float:
    """Step time of a launch: the median over its blocks of the mean over ranks.

    Raises:
        ValueError: no block of that mode was measured.
    """
    per_block = zip(*(headline_blocks(rank, mode) for rank in launch.ranks), strict=True)
    means = [statistics.fmean(b.wall_ns / b.steps for b in ranks) for ranks in per_block]
    if not means:
        raise ValueError(f"launch {launch.number} has no blocks of {mode}")
    return statistics.median(means) / 1e9


def headline_blocks(rank: RankResult, mode: Mode) -> list[Block]:
    """Return the blocks that tell the speed: those whose phases were not timed."""
    return [block for block in rank.blocks if block.mode == mode and not block.phases]


def rank_seconds(rank: RankResult, mode: Mode) -> float:
    """Step time of one rank: the median over its blocks."""
    return statistics.median(b.wall_ns / b.steps for b in headline_blocks(rank, mode)) / 1e9


def has_reference(launch: Launch) -> bool:
    """Return whether the ranks trained a reference beside the arm."""
    return bool(headline_blocks(launch.ranks[0], "reference"))


def imbalance_seconds(launch: Launch) -> float:
    """Return the slowest rank's step time minus the mean over ranks."""
    times = [rank_seconds(rank, "training") for rank in launch.ranks]
    return max(times) - statistics.fmean(times)


def phase_seconds(launch: Launch, mode: Mode) -> dict[str, float]:
    """Mean time of every phase over ranks and steps, without the slowest tenth of the steps."""
    ranks = _phased(launch, mode)
    if not ranks:
        return {}
    totals = [sum(sum(phase[i] for phase in rank.values()) for rank in ranks) for i in _steps_of(ranks)]
    kept = _quickest(totals)
    return {name: statistics.fmean(rank[name][i] for rank in ranks for i in kept) / 1e9 for name in ranks[0]}


def skew_seconds(launch: Launch) -> float | None:
    """Return the mean over steps of the largest minus the mean computing time over ranks."""
    ranks = _phased(launch, "reference")
    if not ranks:
        return None
    computing = [[sum(phase[i] for phase in rank.values()) for rank in ranks] for i in _steps_of(ranks)]
    kept = _quickest([max(times) for times in computing])
    return statistics.fmean(max(computing[i]) - statistics.fmean(computing[i]) for i in kept) / 1e9


def _phased(launch: Launch, mode: Mode) -> list[dict[str, list[int]]]:
    blocks = [[b.phases for b in rank.blocks if b.mode == mode and b.phases] for rank in launch.ranks]
    return [own[0] for own in blocks] if all(blocks) else []


def _steps_of(ranks: list[dict[str, list[int]]]) -> range:
    return range(min(len(phase) for rank in ranks for phase in rank.values()))


def _quickest(totals: Sequence[float]) -> list[int]:
    """Return the indices of all but the slowest tenth."""
    order = sorted(range(len(totals)), key=totals.__getitem__)
    return order[: max(1, len(order) - int(_TRIMMED * len(order)))]


def collective_seconds(launch: Launch) -> float | None:
    """Time of a step's collectives alone: the median over samples of the mean over ranks."""
    calls = list(zip(*(rank.collective_ns for rank in launch.ranks), strict=True))
    return statistics.median(statistics.fmean(call) for call in calls) / 1e9 if calls else None


def cores_per_rank(launch: Launch) -> float:
    """Return CPU time over wall time of the training."""
    blocks = [block for rank in launch.ranks for block in headline_blocks(rank, "training")]
    return sum(b.cpu_ns for b in blocks) / sum(b.wall_ns for b in blocks)


def foreign_share(launch: Launch) -> float:
    """Share of a host's CPUs that others than the ranks used while they were measured; of the busiest host.

    What is counted as others' includes this program's own parent and the launchers.
    """
    shares = [0.0]
    for rank in launch.ranks:
        if rank.machine is not None:
            own = sum(other.cpu_ns for other in launch.ranks if other.host == rank.host)
            shares.append((rank.machine.busy_ns - own) / (rank.machine.cpus * rank.machine.wall_ns))
    return max(shares)


def is_disturbed(launch: Launch) -> bool:
    """Whether others used too much of the machine while it was measured."""
    return foreign_share(launch) > FOREIGN_LIMIT

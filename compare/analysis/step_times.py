"""Compute the figures of one launch.

Times are seconds per step. A block whose phases were timed is slower, so it counts for the phases alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from compare.schema.results import Block, Launch, Mode, RankResult, Run

OTHER_LOAD_LIMIT = 0.10
"""Largest share of CPUs that others may use in a quiet launch."""
_TRIMMED = 0.1
"""Share of slowest steps to drop: an interruption is no phase."""
_FEWEST_BLOCKS = 3
"""The median of one or two blocks is their mean."""


def step_seconds(launch: Launch, mode: Mode = "training") -> float:
    """Return the time of a step.

    It is the mean over ranks and blocks. In turns, it is the geometric mean over turns of that mean. So the
    ratio of two arms is the mean ratio of their turns. A median would depend on the number of blocks, which
    turns of different lengths do not share.

    Raises:
        ValueError: no block of that mode was measured.
    """
    of_turns = turn_seconds(launch, mode)
    if not of_turns:
        raise ValueError(f"launch {launch.number} has no blocks of {mode}")
    return statistics.geometric_mean(of_turns.values())


def turn_seconds(launch: Launch, mode: Mode = "training") -> dict[int, float]:
    """Return the step time of each turn; without turns, of turn 0.

    It is the mean over ranks and blocks.
    """
    return {turn: statistics.fmean(blocks) for turn, blocks in _block_seconds(launch, mode).items()}


def mean_over_median(launch: Launch) -> float | None:
    """Return the time of the timed blocks over that of as many median blocks.

    It is 1 if no block stalls. Every turn has its own median, so a change between turns is no stall. A turn
    counts by its time. One with fewer than three blocks tells nothing; None if all are so short.
    """
    turns = [blocks for blocks in _block_seconds(launch).values() if len(blocks) >= _FEWEST_BLOCKS]
    if not turns:
        return None
    return sum(map(sum, turns)) / sum(statistics.median(blocks) * len(blocks) for blocks in turns)


def _block_seconds(launch: Launch, mode: Mode = "training") -> dict[int, list[float]]:
    """Return the mean over ranks of each block's step time, turn by turn."""
    of_ranks = [_by_turn(rank, mode) for rank in launch.ranks]
    blocks = {turn: zip(*(own[turn] for own in of_ranks), strict=True) for turn in of_ranks[0]}
    return {turn: [statistics.fmean(own) / 1e9 for own in of_turn] for turn, of_turn in blocks.items()}


def turn_cores(launch: Launch) -> dict[int, float]:
    """Return CPU time over wall time of the ranks in each turn."""
    turns: dict[int, list[Block]] = {}
    for block in _of_all_ranks(launch):
        turns.setdefault(block.turn, []).append(block)
    return {turn: _cores(blocks) for turn, blocks in turns.items()}


def rank_seconds(rank: RankResult, mode: Mode) -> float:
    """Return the step time of one rank, as that of a launch."""
    return statistics.geometric_mean(map(statistics.fmean, _by_turn(rank, mode).values())) / 1e9


def _by_turn(rank: RankResult, mode: Mode) -> dict[int, list[float]]:
    """Return the nanoseconds of a step in each block, turn by turn."""
    turns: dict[int, list[float]] = {}
    for block in _timed_blocks(rank, mode):
        turns.setdefault(block.turn, []).append(block.wall_ns / block.steps)
    return turns


def has_reference(launch: Launch) -> bool:
    """Return whether the ranks trained a reference beside the arm."""
    return bool(_timed_blocks(launch.ranks[0], "reference"))


def imbalance_seconds(launch: Launch) -> float:
    """Return the slowest rank's step time minus the mean."""
    times = [rank_seconds(rank, "training") for rank in launch.ranks]
    return max(times) - statistics.fmean(times)


def cores_per_rank(launch: Launch) -> float:
    """Return CPU time over wall time of the training."""
    return _cores(_of_all_ranks(launch))


def _cores(blocks: Sequence[Block]) -> float:
    return sum(block.cpu_ns for block in blocks) / sum(block.wall_ns for block in blocks)


def _of_all_ranks(launch: Launch) -> list[Block]:
    return [block for rank in launch.ranks for block in _timed_blocks(rank, "training")]


def _timed_blocks(rank: RankResult, mode: Mode) -> list[Block]:
    return [block for block in rank.blocks if block.mode == mode and not block.phases]


def phase_changes(launch: Launch) -> dict[str, float]:
    """Return how much longer each phase takes than in the reference.

    An arm that fuses forward and backward has no forward; its backward is compared with both.
    """
    own, reference = _phase_seconds(launch, "training"), _phase_seconds(launch, "reference")
    if own and reference and "forward" not in own:
        reference["backward"] += reference.pop("forward")
    return {name: own[name] - reference[name] for name in own} if reference else {}


def skew_seconds(launch: Launch) -> float | None:
    """Return the largest minus the mean computing time, over steps."""
    ranks = _phased(launch, "reference")
    if not ranks:
        return None
    computing = [[sum(phase[i] for phase in rank.values()) for rank in ranks] for i in _steps_of(ranks)]
    kept = _quickest([max(times) for times in computing])
    return statistics.fmean(max(computing[i]) - statistics.fmean(computing[i]) for i in kept) / 1e9


def _phase_seconds(launch: Launch, mode: Mode) -> dict[str, float]:
    """Return the mean of each phase over ranks and steps."""
    ranks = _phased(launch, mode)
    if not ranks:
        return {}
    totals = [sum(sum(phase[i] for phase in rank.values()) for rank in ranks) for i in _steps_of(ranks)]
    kept = _quickest(totals)
    return {name: statistics.fmean(rank[name][i] for rank in ranks for i in kept) / 1e9 for name in ranks[0]}


def _phased(launch: Launch, mode: Mode) -> list[dict[str, list[int]]]:
    blocks = [[b.phases for b in rank.blocks if b.mode == mode and b.phases] for rank in launch.ranks]
    return [own[0] for own in blocks] if all(blocks) else []


def _steps_of(ranks: list[dict[str, list[int]]]) -> range:
    return range(min(len(phase) for rank in ranks for phase in rank.values()))


def _quickest(totals: Sequence[float]) -> list[int]:
    """Return the indices of all steps except the slowest tenth."""
    order = sorted(range(len(totals)), key=totals.__getitem__)
    return order[: max(1, len(order) - int(_TRIMMED * len(order)))]


def collective_seconds(launch: Launch) -> float | None:
    """Return the time of a step's collectives alone."""
    calls = list(zip(*(rank.collective_ns for rank in launch.ranks), strict=True))
    return statistics.median(statistics.fmean(call) for call in calls) / 1e9 if calls else None


def other_cpu_load(launch: Launch) -> float:
    """Return the share of the busiest host's CPUs that other processes used.

    It includes the parent of this program and the launchers. Hosts with one kernel and the same CPUs are one
    machine, as in a rehearsal.
    """
    return max([0.0, *(cores / cpus for cores, cpus in _other_use(launch))])


def other_cores(launch: Launch) -> float:
    """Return the cores of the busiest host that other processes used.

    What they are is as for `other_cpu_load`.
    """
    return max([0.0, *(cores for cores, _ in _other_use(launch))])


def _other_use(launch: Launch) -> Iterator[tuple[float, int]]:
    """Yield the cores that others used on each host, and its CPUs."""
    on = {
        rank.host: (rank.machine.boot_id or rank.host, rank.attestation.get("affinity"))
        for rank in launch.ranks
        if rank.machine
    }
    for rank in launch.ranks:
        if rank.machine is not None:
            own = sum(other.cpu_ns for other in launch.ranks if on.get(other.host) == on[rank.host])
            yield (rank.machine.busy_ns - own) / rank.machine.wall_ns, rank.machine.cpus


def is_noisy(launch: Launch) -> bool:
    """Return whether other processes used too much of the CPUs."""
    return other_cpu_load(launch) > OTHER_LOAD_LIMIT


def noisy_rounds(run: Run) -> list[int]:
    """Return the rounds that count, although a launch of them is noisy."""
    return sorted({launch.round for launch in run.launches if is_noisy(launch)})

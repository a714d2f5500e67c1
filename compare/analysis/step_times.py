"""Compute the figures of one launch.

Times are seconds per step. A block whose phases were timed is slower, so it counts only for the phases.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from compare.schema.results import Block, Launch, Mode, RankResult, Run

OTHER_LOAD_LIMIT = 0.10
"""Largest share of a host's CPUs that other processes may use before a launch is noisy."""
_TRIMMED = 0.1
"""Share of steps, the slowest ones, that is left out, because an interruption belongs to no phase."""
_FEWEST_BLOCKS = 3
"""Smallest number of blocks whose median may differ from their mean."""


def step_seconds(launch: Launch, mode: Mode = "training") -> float:
    """Return the step time of a launch in seconds.

    It is the mean over ranks and blocks. With turns, it is the geometric mean over turns of that mean, so the
    ratio of two arms is the mean ratio of their turns. A median would depend on the number of blocks, which
    differs between turns of different lengths.

    Raises:
        ValueError: no block of that mode was measured.
    """
    of_turns = turn_seconds(launch, mode)
    if not of_turns:
        raise ValueError(f"launch {launch.number} has no blocks of {mode}")
    return statistics.geometric_mean(of_turns.values())


def turn_seconds(launch: Launch, mode: Mode = "training") -> dict[int, float]:
    """Return the step time in seconds by turn: the mean over ranks and blocks.

    Without turns, the only key is 0. The result is empty if no block of the mode was measured.
    """
    return {turn: statistics.fmean(blocks) for turn, blocks in _block_seconds(launch, mode).items()}


def mean_over_median(launch: Launch) -> float | None:
    """Return the step times of a launch's blocks relative to their medians; about 1 if no block stalls.

    It is the sum of the blocks' step times over the sum of their turns' medians, one for each block. Every
    turn has its own median, because a change between turns is no stall. Turns with fewer than three blocks
    tell nothing and are left out; None if no turn has more.
    """
    turns = [blocks for blocks in _block_seconds(launch).values() if len(blocks) >= _FEWEST_BLOCKS]
    if not turns:
        return None
    return sum(map(sum, turns)) / sum(statistics.median(blocks) * len(blocks) for blocks in turns)


def _block_seconds(launch: Launch, mode: Mode = "training") -> dict[int, list[float]]:
    """Return the step time of each block in seconds, as the mean over ranks, by turn."""
    of_ranks = [_by_turn(rank, mode) for rank in launch.ranks]
    blocks = {turn: zip(*(own[turn] for own in of_ranks), strict=True) for turn in of_ranks[0]}
    return {turn: [statistics.fmean(own) / 1e9 for own in of_turn] for turn, of_turn in blocks.items()}


def turn_cores(launch: Launch) -> dict[int, float]:
    """Return the cores that a rank uses in training, by turn: CPU time over wall time of all ranks."""
    turns: dict[int, list[Block]] = {}
    for block in _of_all_ranks(launch):
        turns.setdefault(block.turn, []).append(block)
    return {turn: _cores(blocks) for turn, blocks in turns.items()}


def rank_seconds(rank: RankResult, mode: Mode) -> float:
    """Return the step time of one rank in seconds, averaged over blocks and turns as in `step_seconds`."""
    return statistics.geometric_mean(map(statistics.fmean, _by_turn(rank, mode).values())) / 1e9


def _by_turn(rank: RankResult, mode: Mode) -> dict[int, list[float]]:
    """Return the nanoseconds per step of each block of a rank, by turn."""
    turns: dict[int, list[float]] = {}
    for block in _timed_blocks(rank, mode):
        turns.setdefault(block.turn, []).append(block.wall_ns / block.steps)
    return turns


def has_reference(launch: Launch) -> bool:
    """Return whether the launch timed the reference, a second replica that never synchronises."""
    return bool(_timed_blocks(launch.ranks[0], "reference"))


def imbalance_seconds(launch: Launch) -> float:
    """Return the slowest rank's step time minus the mean over ranks, in seconds."""
    times = [rank_seconds(rank, "training") for rank in launch.ranks]
    return max(times) - statistics.fmean(times)


def cores_per_rank(launch: Launch) -> float:
    """Return the cores that a rank uses in training: CPU time over wall time of all ranks."""
    return _cores(_of_all_ranks(launch))


def _cores(blocks: Sequence[Block]) -> float:
    return sum(block.cpu_ns for block in blocks) / sum(block.wall_ns for block in blocks)


def _of_all_ranks(launch: Launch) -> list[Block]:
    return [block for rank in launch.ranks for block in _timed_blocks(rank, "training")]


def _timed_blocks(rank: RankResult, mode: Mode) -> list[Block]:
    return [block for block in rank.blocks if block.mode == mode and not block.phases]


def phase_changes(launch: Launch) -> dict[str, float]:
    """Return how many seconds longer each phase of the arm takes than in the reference, by phase.

    An arm that fuses forward and backward has no forward, so its backward is compared with both. The result
    is empty if the phases of the arm or of the reference were not timed.
    """
    own, reference = _phase_seconds(launch, "training"), _phase_seconds(launch, "reference")
    if own and reference and "forward" not in own:
        reference["backward"] += reference.pop("forward")
    return {name: own[name] - reference[name] for name in own} if reference else {}


def skew_seconds(launch: Launch) -> float | None:
    """Return the largest minus the mean computing time over ranks in the reference, in seconds.

    It is the mean over steps without the slowest tenth; None if the phases of the reference were not timed.
    """
    ranks = _phased(launch, "reference")
    if not ranks:
        return None
    computing = [[sum(phase[i] for phase in rank.values()) for rank in ranks] for i in _steps_of(ranks)]
    kept = _quickest([max(times) for times in computing])
    return statistics.fmean(max(computing[i]) - statistics.fmean(computing[i]) for i in kept) / 1e9


def _phase_seconds(launch: Launch, mode: Mode) -> dict[str, float]:
    """Return the mean seconds of each phase, over ranks and over steps without the slowest tenth."""
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
    """Return the seconds of a step's collectives without training; None if they were not timed.

    It is the median over samples of the mean over ranks.
    """
    calls = list(zip(*(rank.collective_ns for rank in launch.ranks), strict=True))
    return statistics.median(statistics.fmean(call) for call in calls) / 1e9 if calls else None


def other_cpu_load(launch: Launch) -> float:
    """Return the share of the busiest host's CPUs that other processes used; 0 if no host recorded its use.

    Ringside's own parent process and the launchers count as other processes. Hosts with one kernel and the
    same CPUs are one machine, as in a rehearsal.
    """
    return max([0.0, *(cores / cpus for cores, cpus in _other_use(launch))])


def other_cores(launch: Launch) -> float:
    """Return how many cores other processes used on the busiest host; 0 if no host recorded its use.

    Other processes are those of `other_cpu_load`.
    """
    return max([0.0, *(cores for cores, _ in _other_use(launch))])


def _other_use(launch: Launch) -> Iterator[tuple[float, int]]:
    """Yield, for each host, the cores that other processes used and the number of CPUs of the ranks."""
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
    """Return whether other processes used more than `OTHER_LOAD_LIMIT` of the busiest host's CPUs."""
    return other_cpu_load(launch) > OTHER_LOAD_LIMIT


def noisy_rounds(run: Run) -> list[int]:
    """Return the numbers of the rounds that count although one of their launches is noisy, in order."""
    return sorted({launch.round for launch in run.launches if is_noisy(launch)})

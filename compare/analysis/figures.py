"""Compute the figures of every launch once, in one table that all judgements read.

Times are seconds per step. A block whose phases were timed is slower, so it counts only for the phases.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, Self

import msgspec

from compare.schema.results import Block, Launch, Mode, Run

OTHER_LOAD_LIMIT = 0.10
"""Largest share of a host's CPUs that other processes may use before a launch is noisy."""
_TRIMMED = 0.1
"""Share of steps, the slowest ones, that is left out, because an interruption belongs to no phase."""
_FEWEST_BLOCKS = 3
"""A turn needs at least so many blocks, because the mean of two equals their median."""


class Turn(NamedTuple):
    """One turn of one arm; without turns, its whole launch."""

    seconds: float
    """Step time: the mean over ranks and blocks."""
    cores: float
    """Cores that a rank uses: CPU time over wall time of all ranks."""


class LaunchFigures:
    """The figures of one launch, each computed when it is first read."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.ranks = launch.ranks

    @cached_property
    def turns(self) -> dict[int, Turn]:
        """Return the turns of the training by their numbers; without turns, the only number is 0."""
        return {
            number: Turn(statistics.fmean(map(_seconds, blocks)), _cores(blocks))
            for number, blocks in self._blocks("training").items()
        }

    @cached_property
    def step_seconds(self) -> float:
        """Return T_S, the step time: the mean over ranks and blocks, and the geometric mean over turns.

        So the ratio of two arms is the mean ratio of their turns. A median would depend on the number of
        blocks, which differs between turns of different lengths.

        Raises:
            ValueError: no step was timed.
        """
        return statistics.geometric_mean(turn.seconds for turn in self.turns.values())

    @cached_property
    def reference_seconds(self) -> float | None:
        """Return T_R, the step time of the second replica, which never synchronises; None without one."""
        turns = [statistics.fmean(map(_seconds, own)) for own in self._blocks("reference").values()]
        return statistics.geometric_mean(turns) if turns else None

    def rank_seconds(self, mode: Mode) -> list[float]:
        """Return the step time of every rank, averaged over blocks and turns as `step_seconds` is."""
        of_turns = (
            [statistics.fmean(block.wall_ns / block.steps for block in its) for its in zip(*own, strict=True)]
            for own in self._blocks(mode).values()
        )
        return [statistics.geometric_mean(means) / 1e9 for means in zip(*of_turns, strict=True)]

    @cached_property
    def slowest_seconds(self) -> float:
        """Return the step time if all ranks waited for the slowest one."""
        times = self.rank_seconds("training")
        return self.step_seconds + (max(times) - statistics.fmean(times))

    @property
    def mean_over_median(self) -> float | None:
        """Return the step times of the blocks relative to their medians; about 1 if no block stalls.

        It is the sum of the blocks' step times over the sum of their turns' medians, one for each block.
        Every turn has its own median, because a change between turns is no stall. Turns with fewer than three
        blocks tell nothing and are left out; None if no turn has more.
        """
        turns = [list(map(_seconds, own)) for own in self._blocks("training").values()]
        turns = [own for own in turns if len(own) >= _FEWEST_BLOCKS]
        if not turns:
            return None
        return sum(map(sum, turns)) / sum(statistics.median(blocks) * len(blocks) for blocks in turns)

    @property
    def cores_per_rank(self) -> float:
        """Return the cores that a rank uses in training: CPU time over wall time of all ranks."""
        return _cores(blocks for own in self._blocks("training").values() for blocks in own)

    @cached_property
    def collective_seconds(self) -> float | None:
        """Return T_iso, the seconds of a step's collectives without training; None if they were not timed.

        It is the median over samples of the mean over ranks.
        """
        calls = list(zip(*(rank.collective_ns for rank in self.ranks), strict=True))
        return statistics.median(statistics.fmean(call) for call in calls) / 1e9 if calls else None

    @cached_property
    def phase_changes(self) -> dict[str, float]:
        """Return how many seconds longer each phase of the arm takes than in the reference, by phase.

        An arm that fuses forward and backward has no forward, so its backward is compared with both. The
        result is empty if the phases of the arm or of the reference were not timed.
        """
        own, reference = self._phase_seconds("training"), self._phase_seconds("reference")
        if own and reference and "forward" not in own:
            reference["backward"] += reference.pop("forward")
        return {name: own[name] - reference[name] for name in own} if reference else {}

    @property
    def skew_seconds(self) -> float | None:
        """Return the largest minus the mean computing time over ranks in the reference.

        It is the mean over steps without the slowest tenth; None if the reference's phases were not timed.
        """
        ranks = self.phases("reference")
        if not ranks:
            return None
        computing = [[sum(phase[i] for phase in rank.values()) for rank in ranks] for i in _steps_of(ranks)]
        kept = _quickest([max(times) for times in computing])
        return statistics.fmean(max(computing[i]) - statistics.fmean(computing[i]) for i in kept) / 1e9

    @cached_property
    def other_cores(self) -> float:
        """Return how many cores other processes used on the busiest host; 0 if no host recorded its use.

        Ringside's own parent process and the launchers count as other processes. Hosts with one kernel and
        the same CPUs are one machine, as in a rehearsal.
        """
        return max([0.0, *(cores for cores, _ in self._other_use())])

    @property
    def other_cpu_load(self) -> float:
        """Return the share of the busiest host's CPUs that other processes used, as in `other_cores`."""
        return max([0.0, *(cores / cpus for cores, cpus in self._other_use())])

    @property
    def is_noisy(self) -> bool:
        """Return whether other processes used more than `OTHER_LOAD_LIMIT` of the busiest host's CPUs."""
        return self.other_cpu_load > OTHER_LOAD_LIMIT

    def _blocks(self, mode: Mode) -> dict[int, list[tuple[Block, ...]]]:
        """Return the blocks by turn, each with the block of every rank."""
        timed = ([b for b in rank.blocks if b.mode == mode and not b.phases] for rank in self.ranks)
        turns: dict[int, list[tuple[Block, ...]]] = {}
        for blocks in zip(*timed, strict=True):
            turns.setdefault(blocks[0].turn, []).append(blocks)
        return turns

    def _phase_seconds(self, mode: Mode) -> dict[str, float]:
        """Return the mean seconds of each phase, over ranks and over steps without the slowest tenth."""
        ranks = self.phases(mode)
        if not ranks:
            return {}
        totals = [sum(sum(phase[i] for phase in rank.values()) for rank in ranks) for i in _steps_of(ranks)]
        kept = _quickest(totals)
        return {
            name: statistics.fmean(rank[name][i] for rank in ranks for i in kept) / 1e9 for name in ranks[0]
        }

    def phases(self, mode: Mode) -> list[dict[str, list[int]]]:
        """Return the nanoseconds of each phase in every step, by rank; empty if one timed no phases."""
        blocks = [[b.phases for b in rank.blocks if b.mode == mode and b.phases] for rank in self.ranks]
        return [own[0] for own in blocks] if all(blocks) else []

    def _other_use(self) -> Iterator[tuple[float, int]]:
        """Yield, for each host, the cores that other processes used and the number of CPUs of the ranks."""
        on = {
            rank.host: (rank.machine.boot_id or rank.host, rank.attestation.get("affinity"))
            for rank in self.ranks
            if rank.machine
        }
        for rank in self.ranks:
            if rank.machine is not None:
                own = sum(other.cpu_ns for other in self.ranks if on.get(other.host) == on[rank.host])
                yield (rank.machine.busy_ns - own) / rank.machine.wall_ns, rank.machine.cpus


class Figures:
    """The figures of all launches of a run that count, by arm and round."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.by_arm: dict[str, dict[int, LaunchFigures]] = defaultdict(
            dict, {arm.label: {} for arm in run.config.arms}
        )
        """The launches of each arm by their round, in the order of arms and of rounds."""
        for launch in sorted(run.launches, key=lambda launch: launch.round):
            self.by_arm[launch.arm][launch.round] = LaunchFigures(launch)

    def of(self, arm: str) -> list[LaunchFigures]:
        """Return the figures of each launch of an arm, in the order of rounds."""
        return list(self.by_arm[arm].values())

    def step_seconds(self, arm: str) -> dict[int, float]:
        """Return an arm's step time by round."""
        return {round_: launch.step_seconds for round_, launch in self.by_arm[arm].items()}

    def turns(self, arm: str) -> dict[tuple[int, int], Turn]:
        """Return the turns of an arm by round and number."""
        of_rounds = self.by_arm[arm].items()
        return {(round_, number): turn for round_, own in of_rounds for number, turn in own.turns.items()}

    def pairs(self, arm: str, other: str) -> list[tuple[LaunchFigures, LaunchFigures]]:
        """Return the launches of two arms in each round that both have."""
        others = self.by_arm[other]
        return [(own, others[round_]) for round_, own in self.by_arm[arm].items() if round_ in others]

    @cached_property
    def common(self) -> Self:
        """Return the figures of only the rounds that every arm with a launch has.

        Only a run that is not complete has other rounds. Without a common round, all rounds are kept.
        """
        rounds = [set(own) for own in self.by_arm.values() if own]
        common = set.intersection(*rounds) if rounds else set()
        return self.within(common) if common else self

    def within(self, rounds: Container[int]) -> Self:
        """Return the figures of some rounds, as if the run had no others."""
        launches = [launch for launch in self.run.launches if launch.round in rounds]
        if len(launches) == len(self.run.launches):
            return self
        return type(self)(msgspec.structs.replace(self.run, launches=launches))

    @cached_property
    def noisy_rounds(self) -> list[int]:
        """Return the rounds that count although one of their launches is noisy, in order."""
        return sorted({round_ for arm in self.by_arm.values() for round_, own in arm.items() if own.is_noisy})


def _seconds(blocks: Sequence[Block]) -> float:
    """Return the step time of a block, as the mean over ranks."""
    return statistics.fmean(block.wall_ns / block.steps for block in blocks) / 1e9


def _cores(blocks: Iterable[Sequence[Block]]) -> float:
    ranks = [block for own in blocks for block in own]
    return sum(block.cpu_ns for block in ranks) / sum(block.wall_ns for block in ranks)


def _steps_of(ranks: list[dict[str, list[int]]]) -> range:
    return range(min(len(phase) for rank in ranks for phase in rank.values()))


def _quickest(totals: Sequence[float]) -> list[int]:
    """Return the indices of all steps except the slowest tenth."""
    order = sorted(range(len(totals)), key=totals.__getitem__)
    return order[: max(1, len(order) - int(_TRIMMED * len(order)))]

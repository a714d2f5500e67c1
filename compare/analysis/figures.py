"""Compute the figures of every launch once, in one table that all judgements read, and estimate means.

Times are seconds per step. Steps are timed in blocks. In some blocks each phase of a step is timed as well;
that makes them slower, so they count only for the phases.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import msgspec

from compare.schema.collectives import RankSweep
from compare.schema.results import Block, Launch, Mode, RankResult, Run

OTHER_LOAD_LIMIT = 0.10
"""A launch is noisy if other processes use more than this share of the CPUs of a host."""
_SLOWEST_SHARE = 0.1
"""This share of steps, the slowest ones, is left out, because an interruption belongs to no phase."""
_FEWEST_BLOCKS_FOR_MEDIAN = 3
"""A turn with fewer blocks is left out, because the mean of two equals their median."""
_CONFIDENCE = 0.95
_FEWEST_FOR_T = 3


class Turn(NamedTuple):
    """One turn of an arm that takes turns with others; for other arms, a whole launch."""

    seconds: float
    """Seconds per step: the mean over ranks and blocks."""
    cores: float
    """Number of cores that a rank uses: CPU time over wall time of all ranks."""


class LaunchFigures:
    """The figures of one launch, each computed when it is first read."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.ranks = launch.ranks

    @cached_property
    def turns(self) -> dict[int, Turn]:
        """Return the turns of the training by their numbers; a launch without turns has the number 0."""
        return {
            number: Turn(statistics.fmean(map(_block_seconds, blocks)), _cores_of(blocks))
            for number, blocks in self._blocks("training").items()
        }

    @cached_property
    def step_seconds(self) -> float:
        """Return T_S, the seconds per step: the geometric mean over turns of each turn's mean.

        So the ratio of two arms is the mean ratio of their turns. A median would depend on the number of
        blocks, which differs between turns of different lengths.

        Raises:
            ValueError: no step was timed.
        """
        return statistics.geometric_mean(turn.seconds for turn in self.turns.values())

    @cached_property
    def reference_seconds(self) -> float | None:
        """Return T_R, the seconds per step of the same model without synchronising; None if not timed."""
        turns = [statistics.fmean(map(_block_seconds, turn)) for turn in self._blocks("reference").values()]
        return statistics.geometric_mean(turns) if turns else None

    def rank_seconds(self, mode: Mode) -> list[float]:
        """Return the seconds per step of every rank, averaged over blocks and turns as `step_seconds` is."""
        of_turns = (
            [
                statistics.fmean([block.wall_ns / block.steps for block in of_rank])
                for of_rank in zip(*turn, strict=True)
            ]
            for turn in self._blocks(mode).values()
        )
        return [statistics.geometric_mean(means) / 1e9 for means in zip(*of_turns, strict=True)]

    @cached_property
    def slowest_seconds(self) -> float:
        """Return how many seconds a step would take if all ranks waited for the slowest one."""
        times = self.rank_seconds("training")
        return self.step_seconds + (max(times) - statistics.fmean(times))

    @property
    def mean_over_median(self) -> float | None:
        """Return the ratio of the blocks' mean step time to their median; about 1 if no block stalls.

        Every turn has its own median, because a change between turns is not a stall. So the result is the sum
        of the blocks' step times over the sum of their turns' medians. Turns with fewer than three blocks are
        left out; None if no turn is left.
        """
        turns = [list(map(_block_seconds, blocks)) for blocks in self._blocks("training").values()]
        turns = [seconds for seconds in turns if len(seconds) >= _FEWEST_BLOCKS_FOR_MEDIAN]
        if not turns:
            return None
        return sum(map(sum, turns)) / sum(statistics.median(blocks) * len(blocks) for blocks in turns)

    @property
    def cores_per_rank(self) -> float:
        """Return how many cores a rank uses in training: CPU time over wall time of all ranks."""
        return _cores_of(blocks for turn in self._blocks("training").values() for blocks in turn)

    @cached_property
    def collective_seconds(self) -> float | None:
        """Return T_iso, the seconds of a step's collectives without training; None if they were not timed.

        They were timed several times; the result is the median of the means over ranks.
        """
        calls = list(zip(*(rank.collective_ns for rank in self.ranks), strict=True))
        return statistics.median(statistics.fmean(call) for call in calls) / 1e9 if calls else None

    @cached_property
    def phase_changes(self) -> dict[str, float]:
        """Return how many seconds longer each phase of a step takes than without synchronisation, by phase.

        If the arm's forward and backward are one phase, its name is ``backward``, and it is compared with
        both. The result is empty if the phases of the arm or of the reference were not timed.
        """
        arm, reference = self._phase_seconds("training"), self._phase_seconds("reference")
        if arm and reference and "forward" not in arm:
            reference["backward"] += reference.pop("forward")
        return {name: arm[name] - reference[name] for name in arm} if reference else {}

    @property
    def skew_seconds(self) -> float | None:
        """Return by how many seconds the slowest rank computes longer than the ranks do on average.

        The steps are those without synchronisation, except the slowest tenth; their differences are averaged.
        None if their phases were not timed.
        """
        ranks = self.phases("reference")
        if not ranks:
            return None
        computing = list(zip(*(_sums(rank.values()) for rank in ranks), strict=False))
        kept = _without_slowest([max(times) for times in computing])
        return statistics.fmean(max(computing[i]) - statistics.fmean(computing[i]) for i in kept) / 1e9

    @cached_property
    def other_cores(self) -> float:
        """Return how many cores other processes used on the busiest host; 0 if no host recorded that.

        All processes but the ranks count, even Ringside's own parent process and the launchers. Hosts with
        one kernel and the same CPUs are one machine, as in a rehearsal. Their packets are this kernel's own
        work, so what it does in interrupts does not count there.
        """
        return max([0.0, *(cores for cores, _ in _cores_of_others(self.ranks))])

    @property
    def other_cpu_load(self) -> float:
        """Return the share of the busiest host's CPUs that other processes used, as in `other_cores`."""
        return load_of_others(self.ranks)

    @property
    def is_noisy(self) -> bool:
        """Return whether other processes used more than `OTHER_LOAD_LIMIT` of the busiest host's CPUs."""
        return self.other_cpu_load > OTHER_LOAD_LIMIT

    def _blocks(self, mode: Mode) -> dict[int, list[tuple[Block, ...]]]:
        """Return, by turn, the blocks of a mode without timed phases, each as a tuple with one per rank."""
        timed = ([b for b in rank.blocks if b.mode == mode and not b.phases] for rank in self.ranks)
        turns: dict[int, list[tuple[Block, ...]]] = {}
        for blocks in zip(*timed, strict=True):
            turns.setdefault(blocks[0].turn, []).append(blocks)
        return turns

    def _phase_seconds(self, mode: Mode) -> dict[str, float]:
        """Return the mean seconds of each phase over ranks and steps, without the slowest tenth of steps.

        The result is empty if the phases were not timed.
        """
        ranks = self.phases(mode)
        if not ranks:
            return {}
        kept = _without_slowest(_sums(phase for rank in ranks for phase in rank.values()))
        return {
            name: statistics.fmean([times[i] for rank in ranks for times in [rank[name]] for i in kept]) / 1e9
            for name in ranks[0]
        }

    def phases(self, mode: Mode) -> list[dict[str, list[int]]]:
        """Return, for each rank, the nanoseconds of every step by phase; empty if a rank timed no phases."""
        blocks = [[b.phases for b in rank.blocks if b.mode == mode and b.phases] for rank in self.ranks]
        return [of_rank[0] for of_rank in blocks] if all(blocks) else []


def load_of_others(ranks: Sequence[RankResult | RankSweep]) -> float:
    """Return the share of the busiest host's CPUs that other processes used beside the ranks of a launch.

    It is 0 if no host recorded its load.
    """
    return max([0.0, *(cores / cpus for cores, cpus in _cores_of_others(ranks))])


def _cores_of_others(ranks: Sequence[RankResult | RankSweep]) -> Iterator[tuple[float, int]]:
    """Yield, for each host, how many cores other processes used, and how many CPUs the ranks may use."""
    machines = {
        rank.host: (rank.machine.boot_id or rank.host, str(rank.attestation.get("affinity")))
        for rank in ranks
        if rank.machine
    }
    hosts: dict[Any, set[str]] = defaultdict(set)
    cpu_ns = Counter[Any]()
    for rank in ranks:
        machine = machines.get(rank.host)
        hosts[machine].add(rank.host)
        cpu_ns[machine] += rank.cpu_ns
    for rank in ranks:
        if rank.machine is not None:
            machine = machines[rank.host]
            busy_ns = rank.machine.busy_ns
            if rank.machine.processes_ns is not None and len(hosts[machine]) > 1:
                busy_ns = min(busy_ns, rank.machine.processes_ns)
            yield (busy_ns - cpu_ns[machine]) / rank.machine.wall_ns, rank.machine.cpus


class Figures:
    """The figures of all launches of a run, by arm and round; discarded launches are left out."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.by_arm: dict[str, dict[int, LaunchFigures]] = defaultdict(
            dict, {arm.label: {} for arm in run.config.arms}
        )
        """The figures of each launch, by arm and then by round, in the order of arms and of rounds."""
        for launch in sorted(run.launches, key=lambda launch: launch.round):
            self.by_arm[launch.arm][launch.round] = LaunchFigures(launch)

    def of(self, arm: str) -> list[LaunchFigures]:
        """Return the figures of each launch of an arm, in the order of rounds."""
        return list(self.by_arm[arm].values())

    def step_seconds(self, arm: str) -> dict[int, float]:
        """Return an arm's seconds per step, by round."""
        return {number: launch.step_seconds for number, launch in self.by_arm[arm].items()}

    def turns(self, arm: str) -> dict[tuple[int, int], Turn]:
        """Return the turns of an arm, by the round and the number of the turn in it."""
        rounds = self.by_arm[arm].items()
        return {(number, turn): figures for number, one in rounds for turn, figures in one.turns.items()}

    def pairs(self, arm: str, other: str) -> list[tuple[LaunchFigures, LaunchFigures]]:
        """Return the figures of two arms' launches in each round that both have, in the order of rounds."""
        rounds = self.by_arm[other]
        return [(one, rounds[number]) for number, one in self.by_arm[arm].items() if number in rounds]

    @cached_property
    def common(self) -> Self:
        """Return the figures of only those rounds that all arms with a launch have in common.

        Only a run that is not complete has other rounds. Without a common round, all rounds are kept.
        """
        rounds = [set(launches) for launches in self.by_arm.values() if launches]
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
        """Return the numbers of the rounds that have a noisy launch and were not discarded, in order."""
        return sorted({number for arm in self.by_arm.values() for number, one in arm.items() if one.is_noisy})


def _block_seconds(blocks: Sequence[Block]) -> float:
    """Return the seconds per step of one block, as the mean over ranks."""
    return statistics.fmean([block.wall_ns / block.steps for block in blocks]) / 1e9


def _cores_of(blocks: Iterable[Sequence[Block]]) -> float:
    of_ranks = [block for one in blocks for block in one]
    return sum(block.cpu_ns for block in of_ranks) / sum(block.wall_ns for block in of_ranks)


def _sums(phases: Iterable[list[int]]) -> list[int]:
    """Return the sum of the phases' nanoseconds in each step that all of them have."""
    return list(map(sum, zip(*phases, strict=False)))


def _without_slowest(totals: Sequence[float]) -> list[int]:
    """Return the indices of all steps except the slowest tenth, by the total time of each step."""
    order = sorted(range(len(totals)), key=totals.__getitem__)
    return order[: max(1, len(order) - int(_SLOWEST_SHARE * len(order)))]


# ---- estimates over launches ----


class Estimate(msgspec.Struct, frozen=True):
    """An arithmetic or geometric mean over launches, with an interval."""

    mean: float
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""
    n: int
    """Number of launches."""
    method: Literal["t", "range"]
    """Kind of interval: ``t`` is Student's 95 % interval of the mean, ``range`` spans one or two values."""

    @classmethod
    def geometric(cls, values: Iterable[float]) -> Self:
        """Estimate the geometric mean of one positive value or more, one for each launch.

        A ratio and its inverse then have inverse estimates, and the quotient of two means is the mean of the
        quotients. The interval is computed on the log scale, so neither end is negative.
        """
        return cls.of(map(math.log, values)).exponential()

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Estimate the arithmetic mean of one value or more, one for each launch."""
        values = list(values)
        mean = statistics.fmean(values)
        if len(values) < _FEWEST_FOR_T:
            return cls(mean, min(values), max(values), len(values), "range")
        return cls(mean, *t_interval(values, (1 - _CONFIDENCE) / 2), len(values), "t")

    @classmethod
    def of_any(cls, values: Iterable[float | None]) -> Self | None:
        """Estimate the arithmetic mean of the values that are not None; None if there are none."""
        known = [value for value in values if value is not None]
        return cls.of(known) if known else None

    def exponential(self) -> Self:
        """Return e to the power of this estimate: the geometric mean, if this is the mean of logarithms."""
        return type(self)(math.exp(self.mean), math.exp(self.low), math.exp(self.high), self.n, self.method)

    def over(self, divisor: Estimate) -> Self:
        """Return this estimate divided by a positive one, as if the two were independent.

        On either side, two squared half-widths add up: that of this estimate divided by the divisor, and that
        of the divisor's inverse times this estimate. One end is infinite if the divisor may be zero.
        """
        ratio = self.mean / divisor.mean
        shorter = 1 - divisor.mean / divisor.high
        longer = divisor.mean / divisor.low - 1 if divisor.low > 0 else math.inf
        below, above = (shorter, longer) if ratio > 0 else (longer, shorter)
        down = math.hypot((self.mean - self.low) / divisor.mean, ratio * below)
        up = math.hypot((self.high - self.mean) / divisor.mean, ratio * above)
        return type(self)(ratio, ratio - down, ratio + up, min(self.n, divisor.n), self.method)

    def rest(self) -> Self:
        """Return one minus this estimate of a share; the ends of the interval change places."""
        return type(self)(1 - self.mean, 1 - self.high, 1 - self.low, self.n, self.method)

    def scaled(self, factor: float) -> Self:
        """Return this estimate times a positive constant."""
        mean, low, high = self.mean * factor, self.low * factor, self.high * factor
        return type(self)(mean, low, high, self.n, self.method)


def t_interval(values: Sequence[float], tail: float) -> tuple[float, float]:
    """Return the ends of Student's interval of the mean of two values or more.

    The true mean lies beyond each end with the probability ``tail``.
    """
    from scipy.special import stdtrit  # importing scipy would slow down the start of the parent

    mean, n = statistics.fmean(values), len(values)
    half = float(stdtrit(n - 1, 1 - tail)) * statistics.stdev(values) / math.sqrt(n)
    return mean - half, mean + half


def binomial_interval(successes: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """Return the two-sided interval of the success rate of one trial or more, at the confidence ``level``.

    It is the exact interval of Clopper & Pearson, Biometrika 26 (1934), which is never too narrow.
    """
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = float(betaincinv(successes, trials - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, trials - successes, 1 - tail)) if successes < trials else 1.0
    return low, high

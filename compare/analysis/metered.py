"""Turn the blocks that ``ringside meter`` timed in a user's own script into the cost of synchronising.

Every pair has a block of steps with synchronising and one without, close to each other in time, so load that
lasts longer than a pair cancels out. The ratio of the two step times is taken on the log scale, and its
interval over the pairs is Student's. The step time of a block is the mean over ranks, as in ``ringside run``.
So the exposed cost contains the wait for the slowest rank.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from compare.analysis.causes import ALPHA, FEWEST_ROUNDS, LEAST_SHARE, Cause
from compare.analysis.figures import OTHER_LOAD_LIMIT, Estimate, t_interval
from compare.schema.metered import PHASES, Metered, MeteredBlock

FEWEST_PAIRS = FEWEST_ROUNDS
"""Fewer pairs have no useful interval, so they show no cost."""


class RankTime(msgspec.Struct, frozen=True, kw_only=True):
    """How long one rank computes a step when it waits for no other."""

    rank: int
    host: str
    local_seconds: Estimate
    excess_seconds: Estimate
    """By how much it computes longer than the mean of all ranks."""


class PhaseTime(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one phase of a step, which synchronises."""

    phase: str
    seconds: float
    """The mean over ranks and blocks."""
    rank_seconds: list[float]
    """The mean over blocks, of each rank."""


class MeterFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a metered script, in seconds per step; one that cannot be computed is None."""

    pairs: int
    """Number of pairs whose blocks both count."""
    step_seconds: Estimate | None
    """Step time of the script as it is."""
    local_seconds: Estimate | None
    """Step time without synchronising."""
    exposed_seconds: Estimate | None
    """E, what synchronising adds to a step; its interval is that of its share, at the mean step time."""
    exposed_share: Estimate | None
    isolated_seconds: Estimate | None
    """T_iso: a step's all-reduces alone, without computing."""
    overlap: Estimate | None
    """H = 1 - E / T_iso: 1 if computing hides all communication, 0 if it hides none."""
    imbalance_seconds: Estimate | None
    """By how much the slowest rank computes longer than the mean of all, which is the wait for it.

    It is the slowest on average, because in each pair noise makes some rank the slowest.
    """
    aa_ratio: Estimate | None
    """Ratio of step times between equal blocks of an A/A test; all figures above are then None."""
    ranks: list[RankTime]
    phases: list[PhaseTime]
    causes: list[Cause]
    other_load: float
    """Share of the busiest host's CPUs that other processes used beside the blocks; 0 if it is not known."""

    @property
    def is_noisy(self) -> bool:
        """Return whether other processes used as much of the CPUs as makes a round of a run noisy."""
        return self.other_load > OTHER_LOAD_LIMIT

    @property
    def has_interval(self) -> bool:
        """Return whether there are enough pairs to tell a cost from noise."""
        return self.pairs >= FEWEST_PAIRS

    @property
    def shows_cost(self) -> bool:
        """Return whether synchronising is shown to cost anything."""
        return self.has_interval and self.exposed_share is not None and self.exposed_share.low > 0


class Pair(NamedTuple):
    """Seconds per step of every rank, in two blocks that followed each other."""

    synchronised: Sequence[float]
    other: Sequence[float]

    @property
    def step_seconds(self) -> float:
        """Return the step time with synchronising, as the mean over ranks."""
        return statistics.fmean(self.synchronised)

    @property
    def other_seconds(self) -> float:
        """Return the step time of the other block, as the mean over ranks."""
        return statistics.fmean(self.other)


def pairs_of(metered: Metered) -> list[Pair]:
    """Return the pairs whose blocks both count, in the order of their numbers."""
    return [Pair(_per_step(first), _per_step(second)) for first, second in metered.complete_pairs]


def measure(metered: Metered) -> MeterFigures:
    """Return the figures of a metered script, also of one that ended early."""
    every = pairs_of(metered)
    pairs = [] if metered.settings.aa else every
    step = _geometric(pair.step_seconds for pair in pairs)
    efficiency = _geometric(pair.other_seconds / pair.step_seconds for pair in pairs)
    share = efficiency.rest() if efficiency else None
    exposed = share.scaled(step.mean) if share and step else None
    isolated = _geometric(statistics.fmean(_per_step(block)) for block in metered.of("isolated"))
    ranks = list(_rank_times(metered, pairs))
    return MeterFigures(
        pairs=len(every),
        step_seconds=step,
        local_seconds=_geometric(pair.other_seconds for pair in pairs),
        exposed_seconds=exposed,
        exposed_share=share,
        isolated_seconds=isolated,
        overlap=exposed.over(isolated).rest() if exposed and isolated else None,
        imbalance_seconds=max((one.excess_seconds for one in ranks), key=_mean, default=None),
        aa_ratio=_geometric(p.step_seconds / p.other_seconds for p in every) if metered.settings.aa else None,
        ranks=ranks,
        phases=list(_phase_times(metered)),
        causes=list(_causes(metered, ranks, pairs, isolated)),
        other_load=_load_of_others(metered),
    )


def _per_step(block: MeteredBlock) -> list[float]:
    """Return the seconds per step of every rank in a block."""
    return [seconds / block.steps for seconds in block.seconds]


def _load_of_others(metered: Metered) -> float:
    """Return the share of the busiest host's CPUs that other processes used beside the blocks of pairs."""
    blocks = [block for pair in metered.complete_pairs for block in pair if any(block.busy_seconds)]
    shares = [0.0]
    for one in metered.ranks if blocks else ():
        here = [rank.rank for rank in metered.ranks if (rank.host, rank.cpus) == (one.host, one.cpus)]
        others = sum(
            block.busy_seconds[one.rank] - sum(block.cpu_seconds[rank] for rank in here) for block in blocks
        )
        shares.append(others / (len(one.cpus) or 1) / sum(block.seconds[one.rank] for block in blocks))
    return max(shares)


def _geometric(values: Iterable[float]) -> Estimate | None:
    values = list(values)
    return Estimate.geometric(values) if values else None


def _mean(estimate: Estimate) -> float:
    return estimate.mean


def _rank_times(metered: Metered, pairs: Sequence[Pair]) -> Iterator[RankTime]:
    for one in metered.ranks if pairs else ():
        yield RankTime(
            rank=one.rank,
            host=one.host,
            local_seconds=Estimate.geometric(pair.other[one.rank] for pair in pairs),
            excess_seconds=Estimate.of(pair.other[one.rank] - pair.other_seconds for pair in pairs),
        )


def _phase_times(metered: Metered) -> Iterator[PhaseTime]:
    """Yield the phases that took any time, in the order of a step."""
    blocks = [block.phases for block in metered.of("phases") if block.phases]
    for phase in PHASES if blocks else ():
        of_ranks = [
            statistics.fmean(rank.get(phase, 0.0) for rank in ranks) for ranks in zip(*blocks, strict=True)
        ]
        if any(of_ranks):
            yield PhaseTime(phase=phase, seconds=statistics.fmean(of_ranks), rank_seconds=of_ranks)


# ---- causes ----


def _causes(
    metered: Metered, ranks: Sequence[RankTime], pairs: Sequence[Pair], isolated: Estimate | None
) -> Iterator[Cause]:
    """Yield the causes of the exposed cost that the record shows, by the names that a run's causes have."""
    computing = _geometric(pair.other_seconds for pair in pairs)
    if len(pairs) < FEWEST_PAIRS or computing is None:
        return
    name = metered.synchronised[0].name if metered.synchronised else "the script"
    overlaps = any(one.way != "by_hand" for one in metered.synchronised)
    if isolated and isolated.low > computing.high:
        evidence = {"compute_seconds": computing.mean, "collective_seconds": isolated.mean}
        yield Cause(key="little_compute", arm=name, evidence=evidence | {"overlaps": overlaps})
    if len(ranks) > 1:
        yield from _straggler(name, ranks, pairs, computing)


def _straggler(
    name: str, ranks: Sequence[RankTime], pairs: Sequence[Pair], computing: Estimate
) -> Iterator[Cause]:
    """Yield a cause if one rank computes longer than the others.

    It is the slowest of several ranks, so ``ALPHA`` is divided by their number (Bonferroni).
    """
    slowest = max(ranks, key=lambda one: one.excess_seconds.mean)
    excess = [pair.other[slowest.rank] - pair.other_seconds for pair in pairs]
    is_long = slowest.excess_seconds.mean >= LEAST_SHARE * computing.mean
    if is_long and t_interval(excess, ALPHA / len(ranks))[0] > 0:
        evidence = {
            "rank": slowest.rank,
            "host": slowest.host,
            "excess_seconds": slowest.excess_seconds.mean,
            "compute_seconds": slowest.local_seconds.mean,
        }
        yield Cause(key="straggler", arm=name, evidence=evidence)

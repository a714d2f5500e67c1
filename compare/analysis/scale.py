"""Compute how step times scale with the number of ranks.

The numbers of ranks take turns within a round. So efficiency is the geometric mean of paired ratios, one for
each round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from compare.analysis.budget import is_oversubscribed
from compare.analysis.causes import FEWEST_ROUNDS, Cause, find_causes
from compare.analysis.estimate import Estimate
from compare.analysis.figures import Figures
from compare.analysis.summary import ArmSummary, summarise
from compare.schema.arms import CONTROL
from compare.schema.scale import Scale

HOLDS = 0.90
"""Smallest efficiency that counts as scaling; an arm bends where it is surely lower."""


class ScalePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one arm at one number of ranks."""

    arm: str
    ranks: int
    batch_size_per_rank: int
    step_seconds: Estimate
    samples_per_second: Estimate
    """Samples of all ranks together, per second."""
    ideal_seconds: float
    """Step time that perfect scaling would give."""
    efficiency: Estimate
    """Ideal step time over the measured one, paired by round."""
    beyond_cores: bool
    """Whether threads outnumber the cores, so that no statement uses this point."""


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """How much longer a step takes than with fewer ranks, and in which parts.

    Computing, waiting and synchronising add up to ``step_seconds``. In strong scaling a rank has less to
    compute, so its computing is compared with its share of the computing of fewer ranks.
    """

    since_ranks: int
    """The smaller number of ranks."""
    share_seconds: float | None
    """In strong scaling, the step time of fewer ranks with computing divided among more; else None."""
    step_seconds: float
    """Growth of the step time."""
    computing_seconds: float
    """Growth of the step time without synchronisation, in the same processes."""
    waiting_seconds: float
    """Growth of the wait for the slowest rank."""
    synchronising_seconds: float
    """The rest of the growth."""
    collective_seconds: float | None
    """Growth of the collectives' time without training; None if it was not measured for both numbers."""


class Bend(msgspec.Struct, frozen=True, kw_only=True):
    """The first number of ranks at which an arm surely falls below ``HOLDS``, and why."""

    arm: str
    ranks: int
    efficiency: Estimate
    lost_seconds: float
    """Mean step time minus the ideal one."""
    computing_seconds: float | None
    """The same for the control, which only computes; None without a control."""
    growth: Growth | None
    """Growth since the next smaller number of ranks; None if no step without synchronisation was timed."""
    causes: list[Cause]
    """Causes of the arm's sync cost at this number of ranks."""


class ScaleFigures(msgspec.Struct, frozen=True, kw_only=True):
    """All figures and statements of a scaling series."""

    reference_ranks: int
    """Smallest number of ranks, to which efficiency is relative."""
    points: list[ScalePoint]
    """One point for each arm and number of ranks, arm by arm, with rising numbers."""
    bends: list[Bend]
    holds: dict[str, int]
    """By arm without a bend: the largest number of ranks up to which it surely keeps ``HOLDS``."""
    unsettled: dict[str, int]
    """By arm without a bend: the first number of ranks whose interval contains ``HOLDS``."""
    noisy: dict[int, list[int]]
    """The noisy rounds by number of ranks, for numbers that have some."""


def summarise_scale(scale: Scale) -> ScaleFigures:
    """Derive all figures of a scaling series."""
    first = scale.series.counts[0]
    figures = {count: Figures(scale.runs[count]) for count in scale.series.counts}
    labels = [arm.label for arm in scale.runs[first].config.arms]
    points = [point for arm in labels for point in _points(scale, figures, arm)]
    arms = [arm for arm in labels if arm != CONTROL]
    bends = [bend for arm in arms if (bend := _bend(scale, figures, points, arm))]
    holds: dict[str, int] = {}
    unsettled: dict[str, int] = {}
    for point in _stated(points):
        if point.arm in {CONTROL, *unsettled, *(bend.arm for bend in bends)} or point.ranks == first:
            continue
        (holds if point.efficiency.low >= HOLDS else unsettled)[point.arm] = point.ranks
    return ScaleFigures(
        reference_ranks=first,
        points=points,
        bends=bends,
        holds=holds,
        unsettled=unsettled,
        noisy={count: rounds for count, own in figures.items() if (rounds := own.noisy_rounds)},
    )


def _points(scale: Scale, figures: Mapping[int, Figures], arm: str) -> Iterator[ScalePoint]:
    first = scale.series.counts[0]
    reference = figures[first].step_seconds(arm)
    for count in scale.series.counts:
        run = scale.runs[count]
        own, batch = figures[count].step_seconds(arm), run.config.global_batch_size
        rounds = sorted(set(own) & set(reference))
        if not rounds:
            continue
        # Ranks that share one global batch have less to compute each.
        share = first / count if scale.series.mode == "strong" else 1.0
        step = Estimate.geometric(own[each] for each in rounds)
        efficiency = Estimate.geometric(share * reference[each] / own[each] for each in rounds)
        yield ScalePoint(
            arm=arm,
            ranks=count,
            batch_size_per_rank=run.config.batch_size_per_rank,
            step_seconds=step,
            samples_per_second=Estimate.geometric(batch / own[each] for each in rounds),
            ideal_seconds=efficiency.mean * step.mean,
            efficiency=efficiency,
            beyond_cores=is_oversubscribed(run),
        )


def _stated(points: list[ScalePoint]) -> Iterator[ScalePoint]:
    """Yield the points that statements may use: with enough rounds, and not more threads than cores."""
    yield from (p for p in points if not p.beyond_cores and p.efficiency.n >= FEWEST_ROUNDS)


def _bend(scale: Scale, figures: Mapping[int, Figures], points: list[ScalePoint], arm: str) -> Bend | None:
    """Find the first number of ranks at which an arm's whole efficiency interval is below ``HOLDS``."""
    own = [point for point in _stated(points) if point.arm == arm]
    index = next((index for index, point in enumerate(own) if point.efficiency.high < HOLDS), None)
    if index is None:
        return None
    counts = own[index - 1].ranks, own[index].ranks
    summaries = [summarise(figures[count]) for count in counts]
    then, now = (next(found for found in summary.arms if found.arm == arm) for summary in summaries)
    causes = find_causes(figures[counts[1]], summaries[1])
    lost = {p.arm: p.step_seconds.mean - p.ideal_seconds for p in points if p.ranks == counts[1]}
    return Bend(
        arm=arm,
        ranks=counts[1],
        efficiency=own[index].efficiency,
        lost_seconds=lost[arm],
        computing_seconds=lost.get(CONTROL),
        growth=_growth(then, now, counts, strong=scale.series.mode == "strong"),
        causes=[cause for cause in causes if cause.arm == arm],
    )


def _growth(then: ArmSummary, now: ArmSummary, counts: tuple[int, int], *, strong: bool) -> Growth | None:
    """Split the growth of a step from ``then`` to ``now``, whose numbers of ranks are ``counts``.

    None if a step without synchronisation was not timed for both.
    """
    if not (then.detail.reference_seconds and now.detail.reference_seconds):
        return None
    computed = then.detail.reference_seconds.mean
    # Messages are as large as before, so only computing is shared among more ranks.
    share = computed * counts[0] / counts[1] if strong else computed
    expected = then.step_seconds.mean - computed + share
    step = now.step_seconds.mean - expected
    computing = now.detail.reference_seconds.mean - share
    skews = [own.detail.skew_seconds for own in (then, now)]
    waited, waits = (skew.mean if skew else 0.0 for skew in skews)
    alone, earlier = now.detail.collective_seconds, then.detail.collective_seconds
    return Growth(
        since_ranks=counts[0],
        share_seconds=expected if strong else None,
        step_seconds=step,
        computing_seconds=computing,
        waiting_seconds=waits - waited,
        synchronising_seconds=step - computing - (waits - waited),
        collective_seconds=alone.mean - earlier.mean if alone and earlier else None,
    )

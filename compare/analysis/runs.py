"""Follow step times through several runs: those of a scaling series, or all in a folder.

In each round of a scaling series, every number of ranks is measured once. So efficiency is the geometric mean
of paired ratios, one for each round. In strong scaling, all numbers of ranks share one global batch; in weak
scaling, every rank has a batch of the same size.

Step times of unlike runs cannot be compared, so a group of a history has only runs that trained the same on
like machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from compare.analysis.budget import cores_of, is_oversubscribed, rounds_done
from compare.analysis.causes import FEWEST_ROUNDS, Cause, find_causes
from compare.analysis.change import FREE_SETTINGS
from compare.analysis.figures import Estimate, Figures
from compare.analysis.summary import ArmSummary, summarise
from compare.schema.arms import CONTROL
from compare.schema.results import Run
from compare.schema.scale import Scale
from compare.text import counted

THRESHOLD = 0.90
"""An arm scales while its efficiency is at least this; it bends where its efficiency is surely lower."""
_SETTINGS_IN_NAME = {"model", "ranks", "threads_per_rank", "device", "batch_size_per_rank"}
"""Settings that the name of a group always states, so they are not listed again as changed ones."""


class ScalePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one arm at one number of ranks."""

    arm: str
    ranks: int
    hosts: int
    """Number of hosts that these ranks were on."""
    batch_size_per_rank: int
    step_seconds: Estimate
    samples_per_second: Estimate
    """Samples of all ranks together, per second."""
    ideal_seconds: float
    """Seconds per step that perfect scaling would give."""
    efficiency: Estimate
    """Ideal step time divided by the measured one, paired by round."""
    beyond_cores: bool
    """Whether threads outnumber the cores, so that no conclusion uses this point."""


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """How much longer a step takes than with fewer ranks, and in which parts; all figures are seconds.

    Computing, waiting and synchronising add up to ``step_seconds``. In strong scaling, each of more ranks has
    less to compute. So the time with more ranks is compared with the time with fewer ranks, after the
    computing in it was divided among more ranks.
    """

    since_ranks: int
    """The smaller number of ranks."""
    share_seconds: float | None
    """In strong scaling, the step time of fewer ranks with its computing divided among more; else None."""
    step_seconds: float
    """By how much the step time grows."""
    computing_seconds: float
    """By how much the step time without synchronisation grows, in the same processes."""
    waiting_seconds: float
    """By how much the wait for the slowest rank grows."""
    synchronising_seconds: float
    """The rest of the growth."""
    collective_seconds: float | None
    """By how much collectives without training take longer; None if not timed with both numbers of ranks."""


class Bend(msgspec.Struct, frozen=True, kw_only=True):
    """The first number of ranks at which the efficiency of an arm is surely below ``THRESHOLD``, and why."""

    arm: str
    ranks: int
    efficiency: Estimate
    lost_seconds: float
    """Mean step time minus the ideal one."""
    computing_seconds: float | None
    """Mean step time minus the ideal one of the control, which only computes; None without a control."""
    growth: Growth | None
    """Growth from the next smaller number of ranks; None if no step without synchronisation was timed."""
    causes: list[Cause]
    """Causes of the arm's sync cost at this number of ranks."""


class ScaleFigures(msgspec.Struct, frozen=True, kw_only=True):
    """All figures and statements of a scaling series."""

    reference_ranks: int
    """The smallest number of ranks, whose efficiency counts as 1."""
    points: list[ScalePoint]
    """One point for each arm and number of ranks, arm by arm, with rising numbers of ranks."""
    bends: list[Bend]
    holds: dict[str, int]
    """By arm without a bend: the number of ranks up to which it surely reaches ``THRESHOLD``."""
    unsettled: dict[str, int]
    """By arm without a bend: the first number of ranks whose interval contains ``THRESHOLD``, if any."""
    noisy: dict[int, list[int]]
    """Numbers of the noisy rounds, by number of ranks; a number of ranks without any is left out."""


def summarise_scale(scale: Scale) -> ScaleFigures:
    """Derive all figures and conclusions of a scaling series from its runs."""
    first = scale.series.counts[0]
    figures = {count: Figures(scale.runs[count]) for count in scale.series.counts}
    labels = [arm.label for arm in scale.runs[first].config.arms]
    points = [point for arm in labels for point in _points(scale, figures, arm)]
    arms = [arm for arm in labels if arm != CONTROL]
    bends = [bend for arm in arms if (bend := _bend_of(scale, figures, points, arm))]
    holds: dict[str, int] = {}
    unsettled: dict[str, int] = {}
    for point in _usable_points(points):
        if point.arm in {CONTROL, *unsettled, *(bend.arm for bend in bends)} or point.ranks == first:
            continue
        (holds if point.efficiency.low >= THRESHOLD else unsettled)[point.arm] = point.ranks
    return ScaleFigures(
        reference_ranks=first,
        points=points,
        bends=bends,
        holds=holds,
        unsettled=unsettled,
        noisy={count: rounds for count, one in figures.items() if (rounds := one.noisy_rounds)},
    )


def _points(scale: Scale, figures: Mapping[int, Figures], arm: str) -> Iterator[ScalePoint]:
    first = scale.series.counts[0]
    reference = figures[first].step_seconds(arm)
    for count in scale.series.counts:
        run = scale.runs[count]
        seconds, batch = figures[count].step_seconds(arm), run.config.global_batch_size
        rounds = sorted(set(seconds) & set(reference))
        if not rounds:
            continue
        # Ranks that share one global batch have less to compute each.
        share = first / count if scale.series.mode == "strong" else 1.0
        step = Estimate.geometric(seconds[each] for each in rounds)
        efficiency = Estimate.geometric(share * reference[each] / seconds[each] for each in rounds)
        yield ScalePoint(
            arm=arm,
            ranks=count,
            hosts=len(run.hosts),
            batch_size_per_rank=run.config.batch_size_per_rank,
            step_seconds=step,
            samples_per_second=Estimate.geometric(batch / seconds[each] for each in rounds),
            ideal_seconds=efficiency.mean * step.mean,
            efficiency=efficiency,
            beyond_cores=is_oversubscribed(run),
        )


def _usable_points(points: list[ScalePoint]) -> Iterator[ScalePoint]:
    """Yield the points that conclusions may use: those with enough rounds and no more threads than cores."""
    yield from (p for p in points if not p.beyond_cores and p.efficiency.n >= FEWEST_ROUNDS)


def _bend_of(scale: Scale, figures: Mapping[int, Figures], points: list[ScalePoint], arm: str) -> Bend | None:
    """Return the first point at which an arm's whole efficiency interval is below ``THRESHOLD``, or None."""
    usable = [point for point in _usable_points(points) if point.arm == arm]
    index = next((index for index, point in enumerate(usable) if point.efficiency.high < THRESHOLD), None)
    if index is None:
        return None
    counts = usable[index - 1].ranks, usable[index].ranks
    summaries = [summarise(figures[count]) for count in counts]
    fewer, more = (next(one for one in summary.arms if one.arm == arm) for summary in summaries)
    causes = find_causes(figures[counts[1]], summaries[1])
    lost = {p.arm: p.step_seconds.mean - p.ideal_seconds for p in points if p.ranks == counts[1]}
    return Bend(
        arm=arm,
        ranks=counts[1],
        efficiency=usable[index].efficiency,
        lost_seconds=lost[arm],
        computing_seconds=lost.get(CONTROL),
        growth=_growth_between(fewer, more, counts, strong=scale.series.mode == "strong"),
        causes=[cause for cause in causes if cause.arm == arm],
    )


def _growth_between(
    fewer: ArmSummary, more: ArmSummary, counts: tuple[int, int], *, strong: bool
) -> Growth | None:
    """Split the growth of an arm's step from ``fewer`` to ``more`` ranks, whose numbers are ``counts``.

    None if steps without synchronisation were not timed for both.
    """
    if not (fewer.detail.reference_seconds and more.detail.reference_seconds):
        return None
    computed = fewer.detail.reference_seconds.mean
    # Messages are as large as before, so only computing is shared among more ranks.
    share = computed * counts[0] / counts[1] if strong else computed
    expected = fewer.step_seconds.mean - computed + share
    step = more.step_seconds.mean - expected
    computing = more.detail.reference_seconds.mean - share
    skews = [one.detail.skew_seconds for one in (fewer, more)]
    wait_of_fewer, wait_of_more = (skew.mean if skew else 0.0 for skew in skews)
    waiting = wait_of_more - wait_of_fewer
    collective, earlier = more.detail.collective_seconds, fewer.detail.collective_seconds
    return Growth(
        since_ranks=counts[0],
        share_seconds=expected if strong else None,
        step_seconds=step,
        computing_seconds=computing,
        waiting_seconds=waiting,
        synchronising_seconds=step - computing - waiting,
        collective_seconds=collective.mean - earlier.mean if collective and earlier else None,
    )


# ---- the history of a folder ----


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
    others: dict[str, str] = {}
    """What the other results of the folder are, such as ``a verification``, by their names."""


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


def follow_runs(entries: Iterable[RunEntry], unread: dict[str, str], others: dict[str, str]) -> History:
    """Return the history of runs, with the trend of each arm that two or more runs of a group have.

    ``unread`` has the reason for each run that could not be read, and ``others`` what each result is that is
    no run, both by their names.
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
    return History(runs=runs, trends=trends, unread=unread, others=others)


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
        *(
            f"{field.name} {value}"
            for field in msgspec.structs.fields(config)
            if (value := getattr(config, field.name)) != field.default
            and field.name not in FREE_SETTINGS | _SETTINGS_IN_NAME
        ),
        f"rehearsed {run.network.rehearsed}" if run.network.rehearsed else "",
        "in turns" if run.interleaved.mode == "blocks" else "one launch after another",
    ]
    return " · ".join(filter(None, parts))


def _per_host(numbers: Sequence[int], noun: str) -> str:
    """Write the numbers of all hosts with a noun, or one if all are equal: ``2+3 ranks`` or ``2 ranks``."""
    return f"{'+'.join(map(str, numbers))} {noun}s" if len({*numbers}) > 1 else counted(numbers[0], noun)

"""Make the document of ``ringside scale``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Literal

from compare.analysis.causes import FEWEST_ROUNDS
from compare.analysis.memory import does_not_fit, timed_bare
from compare.analysis.runs import THRESHOLD, Bend, Growth, ScaleFigures, ScalePoint, summarise_scale
from compare.report.axes import SECONDS_FROM_ZERO, SHARE, count_axis
from compare.report.causes import explain
from compare.report.cells import as_record, format_estimate
from compare.report.document import Column, Document, Table
from compare.report.memory import bare_sentences, unfit_sentences
from compare.report.origin import attested_by, facts_of, model_and_data, noisy_rounds_warning, source_of
from compare.report.outlook import whose_cores
from compare.report.pictures import Chart, Point, draw_lines
from compare.schema.arms import CONTROL
from compare.schema.hosts import rehearsal_headline
from compare.schema.scale import Scale
from compare.text import counted, in_form, listed, numbered, percent

_FULL_DOT, _HOLLOW_DOT = "●", "○"


def document_of(scale: Scale) -> Document:
    """Return the document of a scaling series: each arm's figures by number of ranks, and where it bends."""
    figures = summarise_scale(scale)
    table = Table.of(_columns(scale), figures.points, is_grouped=True)
    has_intervals = any("(" in cell for row in table.rows for cell in row.cells[1:])
    counts, charts = scale.series.counts, _charts(scale, figures)
    run = scale.runs[counts[-1]]
    arms = dict.fromkeys(point.arm for point in figures.points if point.arm != CONTROL)
    return Document(
        title=_headline(scale),
        name=f"{listed(arms)} from {counts[0]} to {counted(counts[-1], 'rank')}",
        source=source_of(scale.series, run, _headline(scale)),
        tables=[replace(table, chart=charts[0])],
        warnings=list(_warnings(scale, figures)),
        lead=list(statements(figures)),
        conclusion=_conclusion(figures),
        notes=list(_notes(scale, figures, has_intervals=has_intervals)),
        draw=lambda: chain.from_iterable(map(draw_lines, charts)),
        facts=[*facts_of(scale.series), ("cores per host", str(run.cores))],
        attested=attested_by(run),
        records=lambda: [{"mode": scale.series.mode} | as_record(point) for point in figures.points],
        content=lambda: {"series": scale.series, "figures": figures, "runs": list(scale.runs.values())},
    )


def _columns(scale: Scale) -> list[Column[ScalePoint]]:
    """Return the columns of the table with a row for each arm and number of ranks."""
    first = counted(scale.series.counts[0], "rank")
    spread = partial(format_estimate, shows_narrow=False)
    hosts = Column[ScalePoint]("hosts", lambda point: str(point.hosts))
    return [
        Column("arm", lambda point: point.arm, is_text=True),
        Column("ranks", lambda point: f"{_HOLLOW_DOT if point.beyond_cores else _FULL_DOT} {point.ranks}"),
        *([hosts] if any(len(run.hosts) > 1 for run in scale.runs.values()) else []),
        Column("batch", lambda point: str(point.batch_size_per_rank)),
        Column("samples/s", lambda point: f"{point.samples_per_second.mean:,.0f}"),
        Column("step ms", lambda point: spread(point.step_seconds, ".2f", 1e3)),
        Column("ideal ms", lambda point: f"{point.ideal_seconds * 1e3:.2f}"),
        Column(f"efficiency\nto {first}", lambda point: f"{spread(point.efficiency, '.0f', 100)} %"),
    ]


def _headline(scale: Scale) -> str:
    """Return the title: mode, model, numbers of ranks, device, batch and rounds of a series."""
    run = scale.runs[scale.series.counts[-1]]
    config, weak = run.config, scale.series.mode == "weak"
    size = config.batch_size_per_rank if weak else config.global_batch_size
    parts = [
        f"{scale.series.mode} scaling",
        model_and_data(run),
        f"{listed(map(str, scale.series.counts))} ranks × {counted(config.threads_per_rank, 'thread')}",
        config.device,
        f"batch {size} {'per rank' if weak else 'in all'}",
        rehearsal_headline(run.network, run.hosts),
        counted(config.rounds, "round"),
    ]
    return " · ".join(filter(None, parts))


def _warnings(scale: Scale, figures: ScaleFigures) -> Iterator[str]:
    """Yield a line for each thing that limits the figures of a series."""
    if figures.noisy:
        yield noisy_rounds_warning(_noisy_rounds(figures))
    runs = scale.runs.values()
    if any(not run.complete or len(run.launches) < run.config.rounds * len(run.config.arms) for run in runs):
        yield "INCOMPLETE: some counts have fewer rounds than others, or none."
    for run in runs:
        unfit = [does_not_fit(run, unfit) for unfit in run.unfit]
        for sentence in (*unfit_sentences(unfit), *bare_sentences(timed_bare(run))):
            yield f"With {counted(run.config.ranks, 'rank')}, {sentence}"
        if run.failure:
            yield f"FAILED with {counted(run.config.ranks, 'rank')}: {run.failure.what}"
    counts = sorted({point.ranks for point in figures.points if point.beyond_cores})
    if counts:
        threads = counted(scale.runs[counts[0]].config.threads_per_rank, "thread")
        yield (
            f"{_HOLLOW_DOT} {listed(map(str, counts))} ranks with {threads} each outnumber the cores "
            f"{whose_cores(scale.runs[counts[0]])}. They wait for cores, so no statement uses these rows."
        )


def _noisy_rounds(figures: ScaleFigures) -> str:
    """Return the noisy rounds by number of ranks: ``round 1 with 2, 4 ranks; rounds 1–3 with 8 ranks``."""
    counts: dict[str, list[int]] = {}
    for count, rounds in figures.noisy.items():
        counts.setdefault(numbered("round", rounds), []).append(count)
    return "; ".join(
        f"{rounds} with {listed(map(str, those))} {'rank' if those == [1] else 'ranks'}"
        for rounds, those in counts.items()
    )


def _conclusion(figures: ScaleFigures) -> str:
    """Return one line on how far each arm scales; empty if there is nothing to conclude."""
    limit = f"{percent(THRESHOLD, 'g')} of the ideal"
    parts = [
        f"{arm} keeps at least {limit} up to {counted(ranks, 'rank')}" for arm, ranks in figures.holds.items()
    ]
    parts += [f"{bend.arm} falls below {limit} at {counted(bend.ranks, 'rank')}" for bend in figures.bends]
    parts += [f"{arm} is open from {counted(ranks, 'rank')} on" for arm, ranks in figures.unsettled.items()]
    return f"{'; '.join(parts)}." if parts else ""


def statements(figures: ScaleFigures) -> Iterator[str]:
    """Yield lines on arms that bend, with causes, and on arms that are open.

    An arm bends at the first number of ranks where its efficiency is clearly below ``THRESHOLD``.
    """
    for bend in figures.bends:
        yield _bend_sentence(bend)
        if bend.growth:
            yield f"  {_growth_sentence(bend.growth, bend.ranks)}"
        yield from (f"  {line}" for line in explain(bend.causes, noisy=bend.ranks in figures.noisy))
    for arm, ranks in figures.unsettled.items():
        reached = f"its interval reaches {percent(THRESHOLD, 'g')}. More --repeats may settle it."
        yield f"{arm} may bend at {counted(ranks, 'rank')}: {reached}"


def _bend_sentence(bend: Bend) -> str:
    low, high = bend.efficiency.low * 100, bend.efficiency.high * 100
    text = (
        f"{bend.arm} bends at {counted(bend.ranks, 'rank')}: {percent(bend.efficiency.mean)} "
        f"({low:.0f}–{high:.0f}) of the ideal. A step takes {bend.lost_seconds * 1e3:.2f} ms more than the "
        "ideal"
    )
    if bend.computing_seconds is None:
        return f"{text}."
    computing, rest = bend.computing_seconds, bend.lost_seconds - bend.computing_seconds
    return (
        f"{text}: {_change(computing)} also without communication, as ranks slow each other down; "
        f"{_change(rest)} by synchronising."
    )


def _growth_sentence(growth: Growth, ranks: int) -> str:
    """Return a sentence with the parts by which a step grew up to ``ranks``, the largest first."""
    parts = {
        "computing": growth.computing_seconds,
        "waiting for the slowest rank": growth.waiting_seconds,
        "synchronising": growth.synchronising_seconds,
    }
    shown = [f"{_change(parts[name])} {name}" for name in sorted(parts, key=lambda name: -parts[name])]
    alone = growth.collective_seconds
    text = f"From {growth.since_ranks} to {counted(ranks, 'rank')} it "
    if growth.share_seconds is None:
        text += f"grew by {in_form(growth.step_seconds * 1e3, '.2f')} ms"
    else:
        share = f"its share of {growth.share_seconds * 1e3:.2f} ms"
        text += f"took {in_form(growth.step_seconds * 1e3, '.2f')} ms beyond {share}"
    text += f": {', '.join(shown)}."
    return text if alone is None else f"{text} Its collectives alone: {_change(alone)}."


def _change(seconds: float) -> str:
    return f"{in_form(seconds * 1e3, '+.2f')} ms"


def _notes(scale: Scale, figures: ScaleFigures, *, has_intervals: bool) -> Iterator[str]:
    """Yield the lines that explain the columns of the table."""
    first = counted(figures.reference_ranks, "rank")
    kept = "rank" if scale.series.mode == "weak" else "step"
    brackets = _brackets(figures, has_intervals=has_intervals)
    yield (
        f"Efficiency: the step time of {first} over this one"
        + ("" if scale.series.mode == "weak" else ", times the share of the batch")
        + f", in the same rounds. The batch of a {kept} is kept.{f' {brackets}' if brackets else ''}"
    )
    if scale.series.mode == "strong":
        yield "Its share: the step of the count before, with its computing divided among more ranks."
    yield (
        f"An arm bends where its interval ends below {percent(THRESHOLD, 'g')}. Counts take turns within "
        f"each round. ringside report on a folder np… shows one count in full."
    )


def _brackets(figures: ScaleFigures, *, has_intervals: bool) -> str:
    """Return what the brackets hold, if there are any, and with too few rounds what that leaves open."""
    if all(point.efficiency.n >= FEWEST_ROUNDS for point in figures.points):
        return "In brackets: 95 % intervals." if has_intervals else ""
    needed = f"95 % intervals need {FEWEST_ROUNDS} rounds, so it is open where arms bend."
    return f"In brackets: the range. {needed}" if has_intervals else needed


# ---- charts ----


def _charts(scale: Scale, figures: ScaleFigures) -> list[Chart]:
    counts = count_axis(scale.series.counts, "rank")
    hollow = " Hollow dots: ranks wait for cores." if any(p.beyond_cores for p in figures.points) else ""
    return [
        Chart.of(
            _points(figures, "efficiency"),
            key="efficiency",
            heading="Efficiency over the number of ranks",
            caption="The ideal step time over this one, with its interval. "
            f"Below {percent(THRESHOLD, 'g')} an arm bends.{hollow}",
            x_axis=counts,
            y_axis=SHARE,
        ),
        Chart.of(
            _points(figures, "step_seconds"),
            key="step",
            heading="Step time over the number of ranks",
            caption=f"Means with their intervals.{hollow}",
            x_axis=counts,
            y_axis=SECONDS_FROM_ZERO,
        ),
    ]


def _points(
    figures: ScaleFigures, name: Literal["efficiency", "step_seconds"]
) -> Iterator[tuple[str, Point]]:
    for point in figures.points:
        yield point.arm, Point.of(point.ranks, getattr(point, name), is_open=point.beyond_cores)

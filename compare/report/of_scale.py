"""Make the document of ``compare scale``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from compare.analysis.estimate import Estimate
from compare.analysis.scale import HOLDS, Bend, Growth, ScaleFigures, ScalePoint, summarise_scale
from compare.report.causes import explain
from compare.report.document import Column, Document, Table
from compare.report.headline import DATASET_NAMES
from compare.report.made import attested_by, facts_of
from compare.report.notes import noisy_in
from compare.report.pictures.canvas import Picture
from compare.report.pictures.charts import SECONDS_FROM_ZERO, SHARE, Point, draw_lines, of_counts
from compare.report.rows import flat
from compare.schema.hosts import rehearsed_on
from compare.schema.results import Run
from compare.schema.scale import Scale
from compare.text import counted, listed

_CELLS = 10
"""Number of dots in the line of an efficiency of 100 %."""
FULL, HOLLOW, LOST = "●", "○", "·"


def document_of(scale: Scale) -> Document:
    """Return the document of a scaling series: each arm's figures by count, where it bends, and why."""
    figures = summarise_scale(scale)
    run = scale.runs[scale.series.counts[-1]]
    return Document(
        title=headline(scale),
        tables=[Table.of(columns(scale), figures.points, groups=True)],
        warnings=list(warnings(scale, figures)),
        lead=list(statements(figures)),
        notes=list(notes(scale, figures)),
        draw=lambda: list(_draw(scale, figures)),
        facts=[*facts_of(scale.series), ("cores per host", str(run.cores))],
        attested=attested_by(run),
        records=lambda: [{"mode": scale.series.mode} | flat(point) for point in figures.points],
        content=lambda: {"series": scale.series, "figures": figures, "runs": list(scale.runs.values())},
    )


def columns(scale: Scale) -> list[Column[ScalePoint]]:
    """Return the columns of the table, which has a row for each arm and number of ranks."""
    first = counted(scale.series.counts[0], "rank")
    return [
        Column("arm", lambda point: point.arm, is_text=True),
        Column("ranks", lambda point: f"{HOLLOW if point.beyond_cores else FULL} {point.ranks}"),
        Column("batch", lambda point: str(point.batch_size_per_rank)),
        Column("samples/s", lambda point: f"{point.samples_per_second.mean:,.0f}"),
        Column("step ms", lambda point: _spread(point.step_seconds.scaled(1e3), ".2f")),
        Column("ideal ms", lambda point: f"{point.ideal_seconds * 1e3:.2f}"),
        Column(f"efficiency\nto {first}", lambda point: f"{_spread(point.efficiency.scaled(100), '.0f')} %"),
        Column("of the ideal line", _line, is_text=True),
    ]


def _spread(estimate: Estimate, form: str) -> str:
    mean, low, high = (f"{value:{form}}" for value in (estimate.mean, estimate.low, estimate.high))
    return mean if estimate.n == 1 or low == high else f"{mean} ({low}–{high})"


def _line(point: ScalePoint) -> str:
    """Return the efficiency as a line of ten dots, one for each 10 %; the missing ones are small."""
    full = max(0, min(_CELLS, round(point.efficiency.mean * _CELLS)))
    return (HOLLOW if point.beyond_cores else FULL) * full + LOST * (_CELLS - full)


def headline(scale: Scale) -> str:
    """Return one line with the mode, model, numbers of ranks, device, batch and rounds of a series."""
    run = scale.runs[scale.series.counts[-1]]
    config, weak = run.config, scale.series.mode == "weak"
    size = config.batch_size_per_rank if weak else config.global_batch_size
    parts = [
        f"{scale.series.mode} scaling",
        config.model if config.is_own else f"{config.model} on {DATASET_NAMES[run.dataset.name]}",
        f"{listed(map(str, scale.series.counts))} ranks × {counted(config.threads_per_rank, 'thread')}",
        config.device,
        f"batch {size} {'per rank' if weak else 'in all'}",
        rehearsed_on(run.network, run.hosts),
        counted(config.rounds, "round"),
    ]
    return " · ".join(filter(None, parts))


def warnings(scale: Scale, figures: ScaleFigures) -> Iterator[str]:
    """Yield a line for each thing that limits the figures of a series."""
    for count, rounds in figures.noisy.items():
        yield f"With {counted(count, 'rank')}: {noisy_in(rounds)}"
    if not all(map(_is_whole, scale.runs.values())):
        yield "INCOMPLETE: some counts have fewer rounds than others, or none."
    for run in scale.runs.values():
        if run.failure:
            first = run.failure.message.splitlines()[0]
            yield f"FAILED with {counted(run.config.ranks, 'rank')}: {run.failure.arm}: {first}"
    beyond = sorted({point.ranks for point in figures.points if point.beyond_cores})
    if beyond:
        threads = scale.runs[beyond[0]].config.threads_per_rank
        yield (
            f"{HOLLOW} {listed(map(str, beyond))} ranks with {counted(threads, 'thread')} each outnumber the "
            "cores of a host. They wait for cores, so no statement uses these rows."
        )


def _is_whole(run: Run) -> bool:
    return run.complete and len(run.launches) == run.config.rounds * len(run.config.arms)


def statements(figures: ScaleFigures) -> Iterator[str]:
    """Yield where each arm bends and why, then which arms hold, and which may bend."""
    for bend in figures.bends:
        yield _bends(bend)
        if bend.growth:
            yield f"  {_grew(bend.growth, bend.ranks)}"
        noisy = " (measured in noisy rounds)" if bend.ranks in figures.noisy else ""
        yield from (f"  {line}" for line in explain(bend.causes, noisy=noisy))
    for arm, ranks in figures.holds.items():
        yield f"{arm} keeps at least {HOLDS * 100:g} % of the ideal up to {counted(ranks, 'rank')}."
    for arm, ranks in figures.unsettled.items():
        reached = f"its interval reaches {HOLDS * 100:g} %. More --repeats may settle it."
        yield f"{arm} may bend at {counted(ranks, 'rank')}: {reached}"


def _bends(bend: Bend) -> str:
    low, high = bend.efficiency.low * 100, bend.efficiency.high * 100
    text = (
        f"{bend.arm} bends at {counted(bend.ranks, 'rank')}: {bend.efficiency.mean * 100:.0f} % "
        f"[{low:.0f}, {high:.0f}] of the ideal. A step takes {bend.lost_seconds * 1e3:.2f} ms more than the "
        "ideal"
    )
    if bend.computing_seconds is None:
        return f"{text}."
    computing, rest = bend.computing_seconds, bend.lost_seconds - bend.computing_seconds
    return (
        f"{text}: {computing * 1e3:+.2f} ms also without communication, as ranks slow each other down; "
        f"{rest * 1e3:+.2f} ms by synchronising."
    )


def _grew(growth: Growth, ranks: int) -> str:
    """Return a sentence with the parts by which a step grew, the largest first."""
    parts = {
        "computing": growth.computing_seconds,
        "waiting for the slowest rank": growth.waiting_seconds,
        "synchronising": growth.synchronising_seconds,
    }
    shown = [f"{parts[name] * 1e3:+.2f} ms {name}" for name in sorted(parts, key=lambda name: -parts[name])]
    alone = growth.collective_seconds
    text = f"From {growth.since_ranks} to {counted(ranks, 'rank')} it "
    if growth.share_seconds is None:
        text += f"grew by {growth.step_seconds * 1e3:.2f} ms"
    else:
        share = f"its share of {growth.share_seconds * 1e3:.2f} ms"
        text += f"took {growth.step_seconds * 1e3:.2f} ms beyond {share}"
    text += f": {', '.join(shown)}."
    return text if alone is None else f"{text} Its collectives alone: {alone * 1e3:+.2f} ms."


def notes(scale: Scale, figures: ScaleFigures) -> Iterator[str]:
    """Yield the lines that explain the columns."""
    first = counted(figures.reference_ranks, "rank")
    kept = "rank" if scale.series.mode == "weak" else "step"
    yield (
        f"Efficiency: the step time of {first} over this one"
        + ("" if scale.series.mode == "weak" else ", times the share of the batch")
        + f", in the same rounds. The batch of a {kept} is kept. In brackets: 95 % intervals from 3 rounds."
    )
    if scale.series.mode == "strong":
        yield "Its share: the step of the count before, with its computing divided among more ranks."
    yield (
        f"An arm bends where its interval ends below {HOLDS * 100:g} %. Counts take turns within each round. "
        f"compare report on a folder np… shows one count in full."
    )


# ---- pictures ----


def _draw(scale: Scale, figures: ScaleFigures) -> Iterator[Picture]:
    counts = of_counts(scale.series.counts, "rank")
    hollow = " Hollow dots: ranks wait for cores." if any(p.beyond_cores for p in figures.points) else ""
    yield from draw_lines(
        Picture(
            "efficiency",
            "Efficiency over the number of ranks",
            f"The ideal step time over this one. Below {HOLDS * 100:g} % an arm bends.{hollow}",
        ),
        _by_arm(figures.points, lambda point: point.efficiency),
        counts,
        SHARE,
    )
    yield from draw_lines(
        Picture(
            "step",
            "Step time over the number of ranks",
            f"Means with their 95 % intervals.{hollow}",
        ),
        _by_arm(figures.points, lambda point: point.step_seconds),
        counts,
        SECONDS_FROM_ZERO,
    )


def _by_arm(points: Sequence[ScalePoint], read: Callable[[ScalePoint], Estimate]) -> dict[str, list[Point]]:
    lines: dict[str, list[Point]] = {}
    for point in points:
        spread = read(point)
        shown = Point(point.ranks, spread.mean, spread.low, spread.high, is_open=point.beyond_cores)
        lines.setdefault(point.arm, []).append(shown)
    return lines

"""Make the pages of collectives, scaling, predictions and verifications."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from compare.analysis.collectives import GroupAtSize, summarise_sweeps
from compare.analysis.estimate import Estimate
from compare.analysis.predict import Prediction
from compare.analysis.scale import HOLDS, ScalePoint, summarise_scale
from compare.report import collectives, predictions, scale, verification
from compare.report.headline import headline
from compare.report.html.canvas import Picture
from compare.report.html.charts import (
    BYTES,
    RATE,
    SECONDS,
    SECONDS_FROM_ZERO,
    SHARE,
    Axis,
    Point,
    draw_lines,
    of_counts,
)
from compare.report.html.page import Item, attested, facts_of
from compare.schema.collectives import CollectivesRun
from compare.schema.results import Verification
from compare.schema.scale import Scale
from compare.text import listed


def of_collectives(run: CollectivesRun) -> Item:
    """Make the page of ``compare collectives``."""
    rows = summarise_sweeps(run)
    tables: list[dict[str, Any]] = []
    drawn: list[Picture] = []
    for number, (exchange, its) in enumerate(collectives.by_exchange(run, rows), 1):
        for group in run.config.groups:
            of_group = [[row] for row in its if row.group == group]
            tables.append(_table(f"{exchange}, {group}", collectives.full_columns(), of_group))
        drawn += _of_exchange(number, str(exchange), run.config.groups, its)
    hosts = [(f"cores of {host.name}", str(n)) for host, n in zip(run.hosts, run.cores_by_host, strict=True)]
    return _item(
        f"{listed(run.config.collectives)} · {collectives.headline(run)}",
        warnings=list(collectives.warnings(run, rows)),
        pictures=drawn,
        tables=tables,
        notes=list(collectives.notes(run, rows)),
        facts=[*facts_of(run), *hosts, ("network", run.network.interface or "loopback")],
        attested=[
            attested(group, own[-1].launcher, own[-1].ranks[0].attestation)
            for group in run.config.groups
            if (own := [launch for launch in run.launches if launch.group == group])
        ],
    )


def _of_exchange(
    number: int, exchange: str, groups: Sequence[str], rows: Sequence[GroupAtSize]
) -> Iterator[Picture]:
    """Draw time and bandwidth of each group over sizes."""
    times = {
        group: [
            Point(row.message_bytes, row.seconds.median, row.seconds.low, row.seconds.high)
            for row in rows
            if row.group == group and row.seconds and row.message_bytes
        ]
        for group in groups
    }
    rates = {
        group: [
            Point(row.message_bytes, row.bus_bandwidth)
            for row in rows
            if row.group == group and row.bus_bandwidth and row.message_bytes
        ]
        for group in groups
    }
    yield from _lines(
        Picture(
            f"time-{number}",
            f"{exchange}: time of a call",
            "Median of all iterations on the slowest rank, with the quartiles. Both axes are logarithmic.",
        ),
        times,
        BYTES,
        SECONDS,
    )
    yield from _lines(
        Picture(
            f"bandwidth-{number}",
            f"{exchange}: bus bandwidth",
            "Size over time, times the factor of nccl-tests. Both axes are logarithmic.",
        ),
        rates,
        BYTES,
        RATE,
    )


def of_scale(series: Scale) -> Item:
    """Make the page of ``compare scale``."""
    figures = summarise_scale(series)
    counts = of_counts(series.series.counts, "rank")
    hollow = " Hollow dots: ranks wait for cores." if any(p.beyond_cores for p in figures.points) else ""
    drawn = [
        *_lines(
            Picture(
                "efficiency",
                "Efficiency over the number of ranks",
                f"The ideal step time over this one. Below {HOLDS * 100:g} % an arm bends.{hollow}",
            ),
            _by_arm(figures.points, lambda point: point.efficiency),
            counts,
            SHARE,
        ),
        *_lines(
            Picture(
                "step",
                "Step time over the number of ranks",
                f"Means with their 95 % intervals.{hollow}",
            ),
            _by_arm(figures.points, lambda point: point.step_seconds),
            counts,
            SECONDS_FROM_ZERO,
        ),
    ]
    run = series.runs[series.series.counts[-1]]
    return _item(
        scale.headline(series),
        warnings=list(scale.warnings(series, figures)),
        statements=[line.strip() for line in scale.statements(figures)],
        pictures=drawn,
        tables=[_table("", scale.columns(series), figures.points)],
        notes=list(scale.notes(series, figures)),
        facts=[*facts_of(series.series), ("cores per host", str(run.cores))],
        attested=[
            attested(arm.label, own[-1].launcher, own[-1].ranks[0].attestation)
            for arm in run.config.arms
            if (own := run.of(arm))
        ],
    )


def of_predictions(page: predictions.Page) -> Item:
    """Make the page of ``compare predict``."""
    found = [row for row in page.rows if isinstance(row, Prediction)]
    picture = Picture(
        "predicted",
        "Predicted step time over the number of hosts",
        "With the error that validation found. Hollow dots lie beyond what was validated.",
    )
    lines: dict[str, list[Point]] = {}
    for row in found:
        spread = row.step_seconds
        beyond = row.beyond_validation or row.regime == "other"
        point = Point(row.hosts, spread.mean, spread.low, spread.high, is_open=beyond)
        lines.setdefault(row.arm, []).append(point)
    drawn = _lines(picture, lines, of_counts((row.hosts for row in found), "host"), SECONDS_FROM_ZERO)
    return _item(
        page.headline,
        pictures=list(drawn),
        tables=[_table("", predictions.columns(page.rows), page.rows)],
        notes=page.lines,
    )


def of_verification(found: Verification) -> Item:
    """Make the page of ``compare verify``, which has no pictures."""
    return _item(
        f"verification · {headline(found.run)}",
        warnings=[*verification.warnings(found), *verification.failures(found)],
        pictures=[],
        tables=[_table("", verification.columns(), found.arms)],
        notes=list(verification.notes(found)),
        facts=facts_of(found.run),
    )


def _item(headline: str, **content: Any) -> Item:
    empty: dict[str, Any] = {"warnings": [], "statements": [], "facts": [], "attested": []}
    return Item(headline, "sheet.html", empty | {"headline": headline} | content)


def _table(title: str, columns: Sequence[Any], rows: Sequence[Any]) -> dict[str, Any]:
    texts = [getattr(column, "is_text", False) for column in columns]
    return {
        "title": title,
        "headings": [
            (column.heading.replace("\n", " ").strip(), is_text)
            for column, is_text in zip(columns, texts, strict=True)
        ],
        "rows": [
            [(column.cell(row), is_text) for column, is_text in zip(columns, texts, strict=True)]
            for row in rows
        ],
    }


def _by_arm(points: Sequence[ScalePoint], read: Any) -> dict[str, list[Point]]:
    lines: dict[str, list[Point]] = {}
    for point in points:
        spread: Estimate = read(point)
        shown = Point(point.ranks, spread.mean, spread.low, spread.high, is_open=point.beyond_cores)
        lines.setdefault(point.arm, []).append(shown)
    return lines


def _lines(picture: Picture, lines: dict[str, list[Point]], across: Axis, up: Axis) -> Iterator[Picture]:
    """Draw the lines that have points; without any there is no picture."""
    drawn = {label: line for label, line in lines.items() if line}
    if drawn:
        draw_lines(picture, drawn, across, up)
        yield picture

"""Render ``compare predict``: a table, Markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from compare.analysis.against import Against, Comparison
from compare.analysis.estimate import Estimate
from compare.analysis.predict import PAYS, Forecast, Prediction
from compare.analysis.validated import VALIDATED_HOSTS, VALIDATED_RATES
from compare.report.rows import csv_text, flat, markdown_rows, markdown_text, printable_line
from compare.report.table import plain
from compare.schema.files import json_text
from compare.text import counted

NOT_MODELLED = (
    "Not modelled: the order of ranks, switches that share links, several ranks on a host, other traffic. "
    "Nor what a host itself can move over a faster link, nor another form with other hosts."
)
Row: TypeAlias = "Prediction | Comparison"


class Column(NamedTuple):
    """A column, and its cell for one row."""

    heading: str
    cell: Callable[[Row], str]
    is_text: bool = False


class Page(NamedTuple):
    """All that one output shows."""

    headline: str
    rows: Sequence[Row]
    lines: list[str]


def page_of(forecast: Forecast) -> Page:
    """Make the page of a forecast."""
    shown = f"Predicted from {counted(forecast.measured_hosts, 'measured rank')}"
    return Page(shown, forecast.predictions, [*_statements(forecast), *_notes(forecast), NOT_MODELLED])


def page_against(against: Against) -> Page:
    """Make the page of predictions beside measurements."""
    comparisons = against.comparisons
    covered = sum(comparison.covered for comparison in comparisons)
    worst = max(abs(comparison.error) for comparison in comparisons)
    lines = [f"Largest error {worst:.1%}; {covered} of {len(comparisons)} intervals hold the measured time."]
    lines += [f"{arm} is not compared: {reason}." for arm, reason in against.left_out.items()]
    if against.same_network:
        lines.append("Both runs have the same hosts and link, so this tests nothing but their noise.")
    return Page("Predicted against measured", comparisons, [*lines, NOT_MODELLED])


def columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns of every table for people."""
    return _comparing() if rows and isinstance(rows[0], Comparison) else _predicting()


def _predicting() -> list[Column]:
    return [
        Column("arm", lambda row: row.arm, is_text=True),
        Column("hosts", lambda row: str(row.hosts)),
        Column("step ms", lambda row: _spread(_own(row).step_seconds)),
        Column("sync share", lambda row: f"{_own(row).sync_share:.0%}"),
        Column("efficiency", lambda row: f"{_own(row).efficiency:.0%}"),
        Column("limited by", lambda row: _own(row).limit, is_text=True),
        Column("error", lambda row: f"×÷ {1 + _own(row).error:.2f}"),
        Column("beyond", lambda row: _beyond(_own(row)), is_text=True),
    ]


def _comparing() -> list[Column]:
    return [
        Column("arm", lambda row: row.arm, is_text=True),
        Column("hosts", lambda row: str(row.hosts)),
        Column("predicted ms", lambda row: _spread(_other(row).predicted_seconds)),
        Column("measured ms", lambda row: _spread(_other(row).measured_seconds)),
        Column("error", lambda row: f"{_other(row).error:+.1%}"),
        Column("in interval", lambda row: "yes" if _other(row).covered else "NO", is_text=True),
    ]


def _own(row: Row) -> Prediction:
    assert isinstance(row, Prediction)  # noqa: S101 -- the rows of a page are of one kind
    return row


def _other(row: Row) -> Comparison:
    assert isinstance(row, Comparison)  # noqa: S101 -- likewise
    return row


def _spread(estimate: Estimate) -> str:
    mean, low, high = (f"{value * 1e3:.1f}" for value in (estimate.mean, estimate.low, estimate.high))
    return mean if low == high else f"{mean} ({low}–{high})"


def _beyond(row: Prediction) -> str:
    hosts = f"hosts × {row.times_hosts:g}" if row.times_hosts != 1 else ""
    rate = f"rate × {row.times_rate:.3g}" if round(row.times_rate, 2) != 1 else ""
    far = "NOT VALIDATED" if row.beyond_validation or row.regime == "other" else ""
    return ", ".join(filter(None, [hosts, rate, far])) or "measured"


def _statements(forecast: Forecast) -> Iterator[str]:
    counts = sorted({prediction.hosts for prediction in forecast.predictions})
    for knee in forecast.knees:
        if knee.hosts is not None:
            yield f"{knee.arm}: adding hosts stops paying after {counted(knee.hosts, 'host')}."
        elif len(counts) > 1:
            yield f"{knee.arm}: adding hosts pays up to {counts[-1]}, the last count here."
    for hosts, reason in sorted(forecast.worth_measuring.items()):
        yield f"Worth measuring: {counted(hosts, 'host')}, because {reason}."
    yield from (f"{arm} is not predicted: {reason}." for arm, reason in forecast.refused.items())


def _notes(forecast: Forecast) -> Iterator[str]:
    slow, fast = VALIDATED_RATES
    yield (
        "error: the factor, either way, found with cells like it in docs/predictions.md. It is the larger of "
        "Student's interval for one more cell and their largest error. No interval is narrower. "
        "NOT VALIDATED has the largest error of all, and may miss by more. "
        "It marks another library or timeline than theirs, "
        f"latency, and a step that bytes do not dominate. It marks more than {VALIDATED_HOSTS} hosts, and a "
        f"rate below {slow:g} or above {fast:g} times the measured one. It marks a run of one host or one "
        "round. With --link, it marks a run of an unknown rate."
    )
    yield (
        f"Each host has its own batch. Hosts pay while throughput gains {PAYS:.0%} of the growth in hosts. "
        f"A delay in fewer than one of {forecast.steps} steps is not in the skew."
    )
    if forecast.added_latency:
        yield (
            "The latency of the measured link is not known, so that of --link is added to it. "
            "--measured-link RATE,LATENCY replaces it."
        )
    if forecast.assumed_goodput:
        yield (
            "The rate of the measured link is not known. A share of the rate as in the lab is assumed; "
            "--measured-link RATE replaces it."
        )


class PredictionTable:
    """One row for each arm and number of hosts."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console, options
        yield printable_line(self.page.headline, "bold")
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        shown = columns(self.page.rows)
        for column in shown:
            table.add_column(column.heading, justify="left" if column.is_text else "right", overflow="fold")
        before = ""
        for row in self.page.rows:
            if before and row.arm != before:
                table.add_section()
            before = row.arm
            table.add_row(*(printable_line(column.cell(row)) for column in shown))
        yield table
        yield from map(printable_line, self.page.lines)


# ---- formats ----


def table(page: Page) -> str:
    """Render the table without colours."""
    return plain(PredictionTable(page))


def markdown(page: Page) -> str:
    """Render a heading line, the table, and the lines as a list."""
    shown = columns(page.rows)
    rows = [
        [column.heading for column in shown],
        [":--" if column.is_text else "--:" for column in shown],
        *([column.cell(row) for column in shown] for row in page.rows),
    ]
    return markdown_text(
        [f"**{page.headline}**", "", *markdown_rows(rows), "", *(f"- {line}" for line in page.lines)]
    )


def csv(page: Page) -> str:
    """Render one line per arm and count, in seconds."""
    rows = [flat(row) for row in page.rows]
    return csv_text(rows)


def json(page: Page) -> str:
    """Render the rows and the lines below them."""
    content = {"rows": list(page.rows), "notes": page.lines}
    return json_text(content)


PREDICTION_RENDERERS: dict[str, Callable[[Page], str]] = {
    "table": table,
    "markdown": markdown,
    "csv": csv,
    "json": json,
}

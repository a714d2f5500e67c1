"""Render the table of a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from compare.analysis import Analysis
from compare.report import brief
from compare.report.causes import CONDITIONS_TITLE, NO_DIFFERENCE, causes, differences
from compare.report.columns import COST_TITLE, Column, arm_column, cost_columns, speed_columns
from compare.report.headline import headline
from compare.report.notes import noise_first, notes, warnings
from compare.report.rows import printable_line
from compare.report.sentences import conclusion
from compare.schema.results import Run

PLAIN_WIDTH = 200
"""Width of output that is no terminal: enough for the widest table."""


def render(
    run: Run, analysis: Analysis, *, wide: bool = False, detail: bool = False, again: str = "RUN"
) -> str:
    """Render the table without colours, in one piece."""
    return plain(RunTable(run, analysis, wide=wide, detail=detail, again=again))


def plain(shown: RenderableType) -> str:
    """Render what a console shows as plain text."""
    console = Console(file=io.StringIO(), width=PLAIN_WIDTH, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(shown)
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


class RunTable:
    """All arms of a run side by side, one row per arm.

    The first table fits 80 columns. ``wide`` has every column, and ``detail`` also where the cost goes. On a
    narrow terminal these two are several tables, one below the other.
    """

    def __init__(
        self, run: Run, analysis: Analysis, *, wide: bool = False, detail: bool = False, again: str = "RUN"
    ) -> None:
        self.run = run
        self.analysis = analysis
        self.wide = wide or detail
        self.detail = detail
        self.again = again

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.wide:
            yield from self._wide(console, options)
        else:
            for line in brief.lines(self.run, self.analysis, options.max_width, again=self.again):
                for part in line.wrap(console, options.max_width):
                    part.rstrip()
                    yield part

    def _wide(self, console: Console, options: ConsoleOptions) -> RenderResult:
        run, analysis = self.run, self.analysis
        first = noise_first(run, analysis.summary)
        yield from (printable_line(noise, "bold yellow") for noise in first)
        yield printable_line(headline(run), "bold")
        if analysis.summary.arms:
            yield from self._tables(console, options, speed_columns(run, analysis.summary))
        if analysis.summary.arms and self.detail:
            yield Text(COST_TITLE, style="bold")
            yield from self._tables(console, options, cost_columns())
            yield Text(CONDITIONS_TITLE, style="bold")
            yield self._differences()
        below = [warning for warning in warnings(run, analysis) if warning not in first]
        yield from (printable_line(warning, "bold yellow") for warning in below)
        yield from map(printable_line, causes(analysis))
        yield from (printable_line(note, "dim") for note in notes(run, analysis))
        yield printable_line(conclusion(run, analysis), "bold")

    def _tables(
        self, console: Console, options: ConsoleOptions, columns: Sequence[Column]
    ) -> Iterator[Table]:
        """Put the columns that fit side by side, the rest below."""
        unlimited = options.update(max_width=10_000)
        shown = list(columns)
        while shown:
            count = len(shown)
            while count > 1 and self._width(console, unlimited, shown[:count]) > options.max_width:
                count -= 1
            yield self._table(shown[:count])
            shown = shown[count:]

    def _width(self, console: Console, options: ConsoleOptions, columns: Sequence[Column]) -> int:
        return Measurement.get(console, options, self._table(columns)).maximum

    def _differences(self) -> Table | Text:
        heading, *rows = differences(self.analysis)
        if not rows:
            return Text(NO_DIFFERENCE)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in heading:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*map(printable_line, row))
        return table

    def _table(self, columns: Sequence[Column]) -> Table:
        columns = [arm_column(), *columns]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            table.add_column(column.heading, justify="left" if column.is_text else "right", overflow="fold")
        for arm in self.analysis.summary.arms:
            style = "bold green" if arm.fastest else None
            table.add_row(*(printable_line(column.cell(arm)) for column in columns), style=style)
        return table

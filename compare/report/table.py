"""The table in the terminal."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from compare.report.wording import COLUMNS, headline, notes

if TYPE_CHECKING:
    from compare.results import Run
    from compare.stats import Summary

_PLAIN_WIDTH = 132
_LEFT = {"arm", "transport"}


def render(run: Run, summary: Summary) -> str:
    """Render without colours, wide enough for every column."""
    console = Console(file=io.StringIO(), width=_PLAIN_WIDTH, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(renderable(run, summary))
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


def renderable(run: Run, summary: Summary) -> RenderableType:
    """Build the table for a console of any width."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, _ in COLUMNS:
        left = heading in _LEFT
        table.add_column(heading, justify="left" if left else "right", overflow="fold")
    for arm in summary.arms:
        cells = [cell(arm) for _, cell in COLUMNS]
        table.add_row(*(Text(text) for text in cells), style="bold green" if arm.fastest else None)
    return Group(
        Text(headline(run), style="bold"), table, *(Text(note, style=_style(note)) for note in notes(run, summary))
    )


def _style(note: str) -> str:
    return "bold yellow" if note.startswith(("INCOMPLETE", "Oversubscribed", "MNIST could not")) else "dim"

"""A Markdown table, for READMEs and issues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compare.report.wording import COLUMNS, headline, notes

if TYPE_CHECKING:
    from compare.results import Run
    from compare.stats import Summary

_LEFT = {"arm", "transport"}


def render(run: Run, summary: Summary) -> str:
    """Render a heading line, the table, and the notes as a list."""
    rows = [
        [heading for heading, _ in COLUMNS],
        [":--" if heading in _LEFT else "--:" for heading, _ in COLUMNS],
        *([cell(arm) for _, cell in COLUMNS] for arm in summary.arms),
    ]
    table = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([f"**{headline(run)}**", "", *table, "", *(f"- {note}" for note in notes(run, summary))])

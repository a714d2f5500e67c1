"""A Markdown table, for READMEs and issues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compare.report.wording import (
    arm_column,
    headline,
    notes,
    outcome_columns,
    speed_columns,
    warnings,
)

if TYPE_CHECKING:
    from compare.results import Run
    from compare.stats import Summary


def render(run: Run, summary: Summary) -> str:
    """Render a heading line, the table, and the notes as a list."""
    columns = [arm_column(), *speed_columns(run), *outcome_columns()]
    rows = [
        [column.heading for column in columns],
        [":--" if column.is_text else "--:" for column in columns],
        *([column.cell(arm) for column in columns] for arm in summary.arms),
    ]
    table = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    said = [f"**{text}**" for text in warnings(run, summary)] + notes(run, summary)
    return "\n".join([f"**{headline(run)}**", "", *table, "", *(f"- {text}" for text in said)])

"""A Markdown table, for READMEs and issues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compare.report.causes import ALL_ALIKE, FAIRNESS_TITLE, differences, reasons
from compare.report.columns import (
    COST_TITLE,
    arm_column,
    collective_columns,
    cost_columns,
    outcome_columns,
    speed_columns,
)
from compare.report.notes import headline, notes, warnings

if TYPE_CHECKING:
    from compare.analysis import Analysis
    from compare.analysis.summary import Summary
    from compare.report.columns import Column
    from compare.schema.results import Run


def render(run: Run, analysis: Analysis, *, detail: bool = False) -> str:
    """Render a heading line, the table, and the notes as a list."""
    summary = analysis.summary
    parts = [f"**{headline(run)}**", "", *_table(summary, [*speed_columns(run), *outcome_columns()]), ""]
    if detail:
        parts += [f"**{COST_TITLE}**", "", *_table(summary, [*cost_columns(), *collective_columns()]), ""]
        heading, *rows = differences(analysis)
        unlike = _lines([heading, [":--"] * len(heading), *rows]) if rows else [ALL_ALIKE]
        parts += [f"**{FAIRNESS_TITLE}**", "", *unlike, ""]
    said = [f"**{text}**" for text in warnings(run, analysis)]
    said += reasons(analysis) + notes(run, analysis)
    return "\n".join([*parts, *(f"- {text}" for text in said)])


def _table(summary: Summary, columns: list[Column]) -> list[str]:
    columns = [arm_column(), *columns]
    rows = [
        [column.heading for column in columns],
        [":--" if column.is_text else "--:" for column in columns],
        *([column.cell(arm) for column in columns] for arm in summary.arms),
    ]
    return _lines(rows)


def _lines(rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]

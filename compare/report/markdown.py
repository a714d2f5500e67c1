"""Render a Markdown table, for READMEs and issues."""

from __future__ import annotations

from compare.analysis import Analysis
from compare.analysis.summary import Summary
from compare.report.causes import CONDITIONS_TITLE, NO_DIFFERENCE, causes, differences
from compare.report.columns import COST_TITLE, Column, arm_column, cost_columns, speed_columns
from compare.report.headline import headline
from compare.report.notes import noise_first, notes, warnings
from compare.report.rows import markdown_rows, markdown_text
from compare.report.sentences import conclusion
from compare.schema.results import Run


def render(run: Run, analysis: Analysis, *, detail: bool = False) -> str:
    """Render a heading, the table, the notes and the conclusion."""
    summary = analysis.summary
    first = noise_first(run, summary)
    parts = [part for noise in first for part in (f"**{noise}**", "")]
    parts += [f"**{headline(run)}**", "", *_table(summary, speed_columns(run, summary)), ""]
    if detail:
        parts += [f"**{COST_TITLE}**", "", *_table(summary, cost_columns()), ""]
        heading, *rows = differences(analysis)
        differing = markdown_rows([heading, [":--"] * len(heading), *rows]) if rows else [NO_DIFFERENCE]
        parts += [f"**{CONDITIONS_TITLE}**", "", *differing, ""]
    lines = [f"**{text}**" for text in warnings(run, analysis) if text not in first]
    lines += causes(analysis) + notes(run, analysis)
    lines.append(f"**{conclusion(run, analysis)}**")
    return markdown_text([*parts, *(f"- {text}" for text in lines)])


def _table(summary: Summary, columns: list[Column]) -> list[str]:
    columns = [arm_column(), *columns]
    rows = [
        [column.heading for column in columns],
        [":--" if column.is_text else "--:" for column in columns],
        *([column.cell(arm) for column in columns] for arm in summary.arms),
    ]
    return markdown_rows(rows)

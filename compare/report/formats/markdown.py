"""Write a document as Markdown, for READMEs and issues."""

from __future__ import annotations

from collections.abc import Sequence

from compare.report.document import Document, Table
from compare.report.rows import markdown_rows, markdown_text


def markdown(document: Document) -> str:
    """Return a document as Markdown: the title, the tables, and all other lines as a list."""
    parts = [part for line in document.alerts for part in (f"**{line}**", "")]
    parts += [f"**{document.title}**", ""]
    for table in document.tables:
        parts += [*([f"**{table.title}**", ""] if table.title else []), *_rows(table), ""]
    bold = [*document.failures, *document.warnings]
    lines = [*map(_bold, bold), *map(str.strip, [*document.lead, *document.statements]), *document.notes]
    lines += map(_bold, filter(None, [document.conclusion]))
    return markdown_text([*parts, *(f"- {line}" for line in lines)])


def _rows(table: Table) -> Sequence[str]:
    return markdown_rows(
        [
            [column.heading.replace("\n", " ").strip() for column in table.columns],
            [":--" if column.is_text else "--:" for column in table.columns],
            *([cell.strip().replace("\n", " ") for cell in row.cells] for row in table.rows),
        ]
    )


def _bold(line: str) -> str:
    return f"**{' '.join(line.split())}**"

"""Write documents as text, by one function for each format; none knows what a document is about."""

from __future__ import annotations

import csv as csv_module
import io
from collections.abc import Callable, Iterator, Mapping, Sequence

from compare.report.document import Document, Table
from compare.report.formats.terminal import plain_text
from compare.system.files import json_text
from compare.text import printable

__all__ = ["FORMATS", "write"]

_FORMULA_STARTS = ("=", "+", "-", "@")


def markdown(document: Document) -> str:
    """Return a document as Markdown: its title and tables, then all other lines as a list."""
    blocks = [_escaped(f"**{line}**") for line in [*document.alerts, document.title]]
    for table in document.tables:
        rows = "\n".join(_markdown_rows(table))
        blocks += [_escaped(block) for block in ([f"**{table.title}**", rows] if table.title else [rows])]
        blocks += [
            f"`{printable(place)}`:\n\n```{language}\n{text}\n```" for place, text, language in table.listings
        ]
    bold = [*document.failures, *document.warnings]
    lines = [*map(_bold, bold), *map(str.strip, [*document.lead, *document.statements]), *document.notes]
    lines += map(_bold, filter(None, [document.conclusion]))
    return "\n\n".join([*blocks, *(["\n".join(_escaped(f"- {line}") for line in lines)] if lines else [])])


def _escaped(text: str) -> str:
    return printable(text).replace("<", "&lt;")


def _markdown_rows(table: Table) -> Iterator[str]:
    """Yield the lines of a table in Markdown, one for each row, with pipes in cells escaped."""
    rows: list[Sequence[str]] = [
        [column.heading for column in table.columns],
        [":--" if column.is_text else "--:" for column in table.columns],
        *(row.cells for row in table.rows),
    ]
    for row in rows:
        cells = (cell.strip().replace("\n", " ").replace("|", "\\|") for cell in row)
        yield f"| {' | '.join(cells)} |"


def _bold(line: str) -> str:
    return f"**{' '.join(line.split())}**"


def csv(document: Document) -> str:
    """Return the records of a document as CSV, in seconds and bytes; all have the columns of the first.

    Control characters are escaped. Text such as ``=1`` gets an apostrophe in front, so that spreadsheets do
    not take it for a formula.
    """
    records = document.records()
    text = io.StringIO()
    writer = csv_module.DictWriter(text, list(records[0]) if records else ["arm"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _harmless(value) for name, value in record.items()} for record in records)
    return text.getvalue().rstrip("\n")


def _harmless(value: object) -> object:
    """Return a value for CSV: text without control characters and formulas, anything else unchanged."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def json(document: Document) -> str:
    """Return the content of a document as JSON, for programs."""
    return json_text(document.content())


def html(document: Document) -> str:
    """Return a document as an HTML page with pictures, which loads nothing from a network."""
    from compare.report.formats.html import page_of

    return page_of([document])


FORMATS: Mapping[str, Callable[[Document], str]] = {
    "table": plain_text,
    "markdown": markdown,
    "html": html,
    "csv": csv,
    "json": json,
}
"""The functions that return a document as text, by the values of ``--format``."""


def write(document: Document, form: str) -> str:
    """Return a document as text in one format, without a newline at the end.

    Raises:
        KeyError: there is no such format.
    """
    return FORMATS[form](document)

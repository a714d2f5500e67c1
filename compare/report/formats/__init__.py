"""Write documents, one module for each format; none knows what a document is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from compare.report.document import Document
from compare.report.formats.markdown import markdown
from compare.report.formats.terminal import plain
from compare.report.rows import csv_text
from compare.system.files import json_text

__all__ = ["FORMATS", "write"]


def csv(document: Document) -> str:
    """Return the records of a document as CSV, in seconds and bytes."""
    return csv_text(document.records())


def json(document: Document) -> str:
    """Return the content of a document as JSON."""
    return json_text(document.content())


def html(document: Document) -> str:
    """Return a document as a page with pictures, which loads nothing from a network."""
    from compare.report.formats.html import page_of

    return page_of([document])


FORMATS: Mapping[str, Callable[[Document], str]] = {
    "table": plain,
    "markdown": markdown,
    "html": html,
    "csv": csv,
    "json": json,
}
"""The functions that write a document, by the values of ``--format``."""


def write(document: Document, form: str) -> str:
    """Return a document as text in one format, without a newline at the end.

    Raises:
        KeyError: there is no such format.
    """
    return FORMATS[form](document)

"""The table of ``compare data status``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compare.data import FileStatus


def renderable(files: Iterable[FileStatus]) -> Table:
    """Build the table: one row a file."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("data", "file", "MB", "content", "where"):
        table.add_column(heading, justify="right" if heading == "MB" else "left", overflow="fold")
    for file in files:
        content = "verified" if file.verified else file.problem or file.form
        style = None if file.verified else "red" if file.problem else "dim"
        size = f"{file.size_bytes / 1e6:.1f}" if file.size_bytes else "–"
        table.add_row(*map(Text, (file.dataset, file.name, size, content, file.path)), style=style)
    return table

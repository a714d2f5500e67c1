"""Fetch and check the data: ``compare data``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from compare.cli.console import make_console
from compare.cli.options import AsJson, DataDir
from compare.errors import DataError

if TYPE_CHECKING:
    from rich.table import Table

    from compare.data import FileStatus


def fetch(data_dir: DataDir = None) -> None:
    """Download MNIST once, and verify every byte."""
    from compare import data

    folder = data.fetch_mnist(
        data_dir or data.default_root(), progress=lambda line: typer.echo(line, err=True)
    )
    typer.echo(f"MNIST is complete and verified in {folder}")


def status(data_dir: DataDir = None, *, as_json: AsJson = False) -> None:
    """List the data files, and whether their content is right.

    Exits with 3 where a file is missing or damaged.
    """
    from compare import data
    from compare.system.files import STANDARD_OUTPUT, write_json

    files = data.status(data_dir or data.default_root())
    if as_json:
        write_json(STANDARD_OUTPUT, files)
    else:
        make_console().print(_table(files))
    if not all(file.verified for file in files):
        raise typer.Exit(DataError.exit_code)


def _table(files: Iterable[FileStatus]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("data", "file", "MB", "content", "where"):
        table.add_column(heading, justify="right" if heading == "MB" else "left", overflow="fold")
    for file in files:
        content = "verified" if file.verified else file.problem or file.form
        style = None if file.verified else "red" if file.problem else "dim"
        size = f"{file.size_bytes / 1e6:.1f}" if file.size_bytes else "–"
        table.add_row(*map(Text, (file.dataset, file.name, size, content, file.path)), style=style)
    return table

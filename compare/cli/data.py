"""Fetch and check the data: ``ringside data``."""

from __future__ import annotations

import typer

from compare.cli.options import AsJson, DataDir
from compare.cli.output import show
from compare.errors import DataError


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
    from compare.report.document import Column, Document, Table

    files = data.status(data_dir or data.default_root())
    columns: list[Column[data.FileStatus]] = [
        Column("data", lambda file: file.dataset, is_text=True),
        Column("file", lambda file: file.name, is_text=True),
        Column("MB", lambda file: f"{file.size_bytes / 1e6:.1f}" if file.size_bytes else "–"),
        Column(
            "content", lambda file: "verified" if file.verified else file.problem or file.form, is_text=True
        ),
        Column("where", lambda file: file.path, is_text=True),
    ]
    table = Table.of(
        columns, files, style=lambda file: "" if file.verified else "bad" if file.problem else "aside"
    )
    document = Document(title="Files of the data sets", tables=[table], content=lambda: files)
    show(document, "json" if as_json else "table")
    if not all(file.verified for file in files):
        raise typer.Exit(DataError.exit_code)

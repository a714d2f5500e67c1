"""Show a result on the terminal or in files, in the same way for every command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from compare.cli.choices import Format
from compare.cli.console import make_console
from compare.errors import OutputError

if TYPE_CHECKING:
    from compare.cli.options import LaunchFlags
    from compare.report import Result
    from compare.report.document import Document


def show(
    document: Document, form: Format = Format.TABLE, *, stderr: bool = False, output: Path | None = None
) -> None:
    """Print a document in one format, or write it to the file ``output``.

    A printed table is as wide as the terminal.
    """
    from compare.report.formats import write
    from compare.report.formats.terminal import Shown
    from compare.system.files import write_text

    if output:
        write_text(output, write(document, form.value) + "\n")
    elif form is Format.TABLE:
        make_console(stderr=stderr).print(Shown(document))
    else:
        typer.echo(write(document, form.value), err=stderr)


def export(result: Result, flags: LaunchFlags, *, detail: bool = False, sort: str | None = None) -> None:
    """Write a result to every file that the flags of a command name.

    Raises:
        OutputError: a file cannot be written; the others are written all the same.
    """
    from compare.report import View, document_of, write
    from compare.system.files import write_text

    errors = []
    for form, path in flags.exports.items():
        try:
            document = document_of(result, form, View(detail=detail, sort=sort))
            write_text(path, write(document, form) + "\n")
        except OutputError as error:
            errors.append(error)
    if errors:
        raise errors[0]

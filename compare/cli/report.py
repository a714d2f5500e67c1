"""Show a run again: ``ringside report``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from compare.cli.options import Format, ViewFlags, output_flag, with_flags
from compare.cli.output import as_output_error, show
from compare.errors import UsageError


@with_flags(ViewFlags)
def report(
    flags: ViewFlags,
    *,
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folder of a run, or its results.json; or `last`, the newest in runs/. HTML takes several.",
        ),
    ],
    form: Annotated[Format, output_flag("--format", help="What to write.")] = "table",
    output: Annotated[Path | None, output_flag(help="Write to this file instead.")] = None,
    pictures: Annotated[
        Path | None, output_flag(help="Also write each picture of the page into this folder, as SVG.")
    ] = None,
) -> None:
    """Show a run again in any format, also one that was stopped."""
    from compare.report import document_of
    from compare.report.formats.html import page_of, pictures_of
    from compare.schema.store import RESULT_FILES, find_run, read_result, result_file
    from compare.system.files import write_text

    paths = [find_run(path, RESULT_FILES) for path in runs]
    if len(paths) > 1 and form != "html":
        raise UsageError(
            f"--format {form} shows one run.",
            found=f"{len(paths)} are named.",
            remedy="Name one of them, or use --format html.",
        )
    if output and os.path.realpath(output) in map(os.path.realpath, map(result_file, paths)):
        raise UsageError(f"{output} holds the run itself.", remedy="Write the report to another file.")
    results = [read_result(path) for path in paths]
    if pictures or form == "html":
        with as_output_error(*paths):  # what is drawn is computed as late as that
            pages = [document_of(result, "html", flags.view()) for result in results]
            drawn = pictures_of(pages) if pictures else {}
            text = page_of(pages) if form == "html" else ""
        if pictures:
            pictures.mkdir(parents=True, exist_ok=True)
            for name, svg in drawn.items():
                write_text(pictures / f"{name}.svg", svg + "\n")
        if form == "html":
            write_text(output, text + "\n") if output else typer.echo(text)
            return
    with as_output_error(paths[0]):
        show(document_of(results[0], form, flags.view(str(runs[0]))), form, output=output)

"""Show a run again: ``compare report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compare.cli.collectives import print_collectives, render_collectives
from compare.cli.console import make_console
from compare.cli.options import Detail
from compare.cli.scale import print_scale, render_scale
from compare.errors import UsageError


def report(
    run_directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, or its results.json.")
    ],
    *,
    form: Annotated[str, typer.Option("--format", help="table, markdown, csv or json.")] = "table",
    detail: Detail = False,
    output: Annotated[Path | None, typer.Option(help="Write to this file instead.")] = None,
) -> None:
    """Show a run again in any format, also one that was stopped."""
    from compare.analysis import analyse
    from compare.report import RENDERERS, render
    from compare.report.table import RunTable
    from compare.schema.files import write_text
    from compare.schema.scale import read_scale
    from compare.schema.store import collectives_file, read_collectives, read_run, results_file

    if form not in RENDERERS:
        raise UsageError(f"--format cannot be {form!r}.", remedy=f"Use one of: {', '.join(RENDERERS)}.")
    if collectives := read_collectives(run_directory):
        if output:
            _require_another_file(output, collectives_file(run_directory))
            write_text(output, render_collectives(collectives, form, detail=detail) + "\n")
        else:
            print_collectives(collectives, form, detail=detail)
        return
    if scale := read_scale(run_directory):
        if output:
            _require_another_file(output, run_directory)
            write_text(output, render_scale(scale, form) + "\n")
        else:
            print_scale(scale, form)
        return
    run = read_run(run_directory)
    if output:
        _require_another_file(output, results_file(run_directory))
    analysis = analyse(run)
    if output:
        write_text(output, render(run, analysis, form, detail=detail) + "\n")
    elif form == "table":
        make_console().print(RunTable(run, analysis, detail=detail))
    else:
        typer.echo(render(run, analysis, form, detail=detail))


def _require_another_file(output: Path, holding: Path) -> None:
    if output.exists() and output.samefile(holding):
        raise UsageError(f"{output} holds the run itself.", remedy="Write the report to another file.")

"""Show a run again: ``compare report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compare.cli.choices import Format
from compare.cli.collectives import print_collectives, render_collectives
from compare.cli.console import make_console
from compare.cli.options import Detail, Sort, Wide, output_flag
from compare.cli.scale import print_scale, render_scale
from compare.errors import UsageError

if TYPE_CHECKING:
    from compare.analysis import Analysis
    from compare.schema.results import Run


def report(
    run_directory: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Folder of a run, or its results.json; or `last`, the newest in runs/."
        ),
    ],
    *,
    form: Annotated[Format, output_flag("--format", help="What to write.")] = Format.TABLE,
    wide: Wide = False,
    detail: Detail = False,
    sort: Sort = None,
    output: Annotated[Path | None, output_flag(help="Write to this file instead.")] = None,
    pictures: Annotated[
        Path | None, output_flag(help="Also write each picture of the page into this folder, as SVG.")
    ] = None,
) -> None:
    """Show a run again in any format, also one that was stopped."""
    from compare.analysis import analyse
    from compare.report import arrange, render
    from compare.report.table import RunTable
    from compare.schema.files import write_text
    from compare.schema.scale import read_scale, scale_file
    from compare.schema.store import collectives_file, find_run, read_collectives, read_run, results_file

    again, run_directory = str(run_directory), find_run(run_directory)
    if collectives := read_collectives(run_directory):
        _require_no_page(form, pictures, "Collectives")
        if output:
            _require_another_file(output, collectives_file(run_directory))
            write_text(output, render_collectives(collectives, form, detail=detail) + "\n")
        else:
            print_collectives(collectives, form, detail=detail)
        return
    if scale := read_scale(run_directory):
        _require_no_page(form, pictures, "A scaling series")
        if output:
            _require_another_file(output, scale_file(run_directory))
            write_text(output, render_scale(scale, form) + "\n")
        else:
            print_scale(scale, form)
        return
    run = read_run(run_directory)
    if output:
        _require_another_file(output, results_file(run_directory))
    analysis = analyse(run)
    if pictures:
        _write_pictures(run, analysis, pictures)
    if form is Format.TABLE and not output:
        arranged = arrange(analysis, sort)
        make_console().print(RunTable(run, arranged, wide=wide, detail=detail, again=again))
        return
    text = render(run, analysis, form, wide=wide, detail=detail, sort=sort, again=again)
    if output:
        write_text(output, text + "\n")
    else:
        typer.echo(text)


def _write_pictures(run: Run, analysis: Analysis, folder: Path) -> None:
    from compare.report import arrange
    from compare.report.html import pictures
    from compare.schema.files import write_text

    folder.mkdir(parents=True, exist_ok=True)
    for name, drawn in pictures(run, arrange(analysis, None)).items():
        write_text(folder / f"{name}.svg", drawn + "\n")


def _require_no_page(form: Format, pictures: Path | None, what: str) -> None:
    if pictures:
        raise UsageError(f"{what} has no pictures yet.", remedy="Leave --pictures out.")
    if form is Format.HTML:
        forms = [own.value for own in Format if own is not Format.HTML]
        raise UsageError(f"{what} cannot be shown as html.", remedy=f"Use one of: {', '.join(forms)}.")


def _require_another_file(output: Path, holding: Path) -> None:
    if output.exists() and output.samefile(holding):
        raise UsageError(f"{output} holds the run itself.", remedy="Write the report to another file.")

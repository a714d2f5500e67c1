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
    from collections.abc import Sequence

    from compare.report.html import Item
    from compare.schema.results import Run


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folder of a run, or its results.json; or `last`, the newest in runs/. HTML takes several.",
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
    png: Annotated[bool, output_flag("--png", help="With --pictures: also as PNG.")] = False,
) -> None:
    """Show a run again in any format, also one that was stopped."""
    from compare.schema.files import write_text
    from compare.schema.scale import read_scale
    from compare.schema.store import find_run, read_collectives, read_run

    paths = [find_run(path) for path in runs]
    _require_one(paths, form)
    if png and not pictures:
        raise UsageError("--png writes pictures into a folder.", remedy="Name it: --pictures DIR.")
    if output:
        _require_another_file(output, paths)
    if pictures or form is Format.HTML:
        from compare.report.html import page_of

        items = [_item(path, sort) for path in paths]
        if pictures:
            _write_pictures(items, pictures, png=png)
        if form is Format.HTML:
            _write(page_of(items), output)
            return
    (path,) = paths
    if collectives := read_collectives(path):
        if output:
            write_text(output, render_collectives(collectives, form, detail=detail) + "\n")
        else:
            print_collectives(collectives, form, detail=detail)
    elif scale := read_scale(path):
        if output:
            write_text(output, render_scale(scale, form) + "\n")
        else:
            print_scale(scale, form)
    else:
        _show(read_run(path), form, output, again=str(runs[0]), wide=wide, detail=detail, sort=sort)


def _show(
    run: Run, form: Format, output: Path | None, *, again: str, wide: bool, detail: bool, sort: Sort
) -> None:
    from compare.analysis import analyse
    from compare.report import arrange, render
    from compare.report.table import RunTable

    analysis = analyse(run)
    if form is Format.TABLE and not output:
        shown = RunTable(run, arrange(analysis, sort), wide=wide, detail=detail, again=again)
        make_console().print(shown)
        return
    _write(render(run, analysis, form, wide=wide, detail=detail, sort=sort, again=again), output)


def _write(text: str, output: Path | None) -> None:
    from compare.schema.files import write_text

    if output:
        write_text(output, text + "\n")
    else:
        typer.echo(text)


# ---- pages ----


def _item(path: Path, sort: Sort) -> Item:
    """Read what a path holds, as its part of a page."""
    from compare.analysis import analyse
    from compare.report import arrange
    from compare.report.html import of_run
    from compare.report.html.sheets import of_collectives, of_scale
    from compare.schema.scale import read_scale
    from compare.schema.store import read_collectives, read_run

    if collectives := read_collectives(path):
        return of_collectives(collectives)
    if scale := read_scale(path):
        return of_scale(scale)
    run = read_run(path)
    return of_run(run, arrange(analyse(run), sort))


def _write_pictures(items: Sequence[Item], folder: Path, *, png: bool) -> None:
    from compare.report.html import pictures_of
    from compare.report.html.png import png_of
    from compare.schema.files import write_bytes, write_text

    drawn = pictures_of(items)
    pixels = dict(zip(drawn, png_of(drawn.values()), strict=True)) if png else {}
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in drawn.items():
        write_text(folder / f"{name}.svg", svg + "\n")
    for name, image in pixels.items():
        write_bytes(folder / f"{name}.png", image)


def _require_one(paths: Sequence[Path], form: Format) -> None:
    if len(paths) > 1 and form is not Format.HTML:
        raise UsageError(
            f"--format {form} shows one run.",
            found=f"{len(paths)} are named.",
            remedy="Name one of them, or use --format html.",
        )


def _require_another_file(output: Path, paths: Sequence[Path]) -> None:
    from compare.schema.scale import scale_file
    from compare.schema.store import collectives_file, results_file

    files = (find(path) for path in paths for find in (collectives_file, scale_file, results_file))
    for holding in files:
        if output.exists() and holding.exists() and output.samefile(holding):
            raise UsageError(f"{output} holds the run itself.", remedy="Write the report to another file.")

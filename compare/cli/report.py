"""Show results again: ``ringside report``, for one run, for two side by side, or as a list of all."""

from __future__ import annotations

import os
import tempfile
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from compare.cli.flag_options import Export, read_exports
from compare.cli.options import Exports, output_flag
from compare.cli.output import as_output_error, show
from compare.errors import OutputError, UsageError

if TYPE_CHECKING:
    from compare.report.document import Document

    Documents: TypeAlias = Callable[[str], Sequence[Document]]
    """What returns the documents to show in a format; only a page has more than one."""

_MOST_IN_TABLE = 2
"""Maximum number of runs that a table shows, side by side; a page takes any number."""
_OF_ONE_RUN = ("lesson", "summary")
"""Formats that tell of one run in sentences, which is a document of its own."""
_HELP = (
    "summary: half a page for people who do not know what an arm is. lesson: the figures explained, with the "
    "code that synchronises."
)
ReportFormat: TypeAlias = Literal["table", "markdown", "html", "csv", "json", "lesson", "summary"]


def report(
    *,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN",
            show_default=False,
            help="Folder of a run, its results.json, or `last`, the newest in runs/. Two stand side by side, "
            "and a page takes more. Without one, or for a folder of runs, all results are listed.",
        ),
    ] = None,
    form: Annotated[
        ReportFormat,
        output_flag("--format", help="What to print. " + _HELP),
    ] = "table",
    detail: Annotated[
        bool, output_flag("--detail", help="Show every column and note, and where the cost goes.")
    ] = False,
    arm: Annotated[
        list[str] | None,
        output_flag("--arm", metavar="ARM", help="Explain this arm alone in a lesson; repeatable."),
    ] = None,
    opened: Annotated[bool, output_flag("--open", help="Write a page, and open it in the browser.")] = False,
    pictures: Annotated[
        Path | None, output_flag(help="Also write each picture of the page into this folder, as SVG.")
    ] = None,
    export: Exports = None,
) -> None:
    """Show a run again, two runs side by side, or a list of all.

    A run that was stopped is shown as well. Two runs are described and not judged: `ringside gate` judges, in
    one run.
    """
    from compare.system.files import STANDARD_OUTPUT

    exports = read_exports(export)
    paths = _find_runs(runs or [])
    _require_kept(paths, exports)
    if opened:
        exports.append(Export("html", Path(tempfile.mkdtemp(prefix="ringside-"), "report.html")))
    # A page takes more runs than a table, which is left out then.
    only_a_page = form == "table" and len(paths) > _MOST_IN_TABLE and "html" in [one.form for one in exports]
    for shown in (*(() if only_a_page else (form,)), *(one.form for one in exports)):
        _require_shown(shown, len(paths))
    documents = _documents_of(paths, [*(runs or [])], form, arm or [], detail=detail)
    with as_output_error(*paths):
        to_stderr = STANDARD_OUTPUT in [one.path for one in exports]
        if not only_a_page:
            _write(documents, "table" if form in _OF_ONE_RUN else form, stderr=to_stderr)
        for one in exports:
            _write(documents, one.form, output=one.path)
        if pictures:
            _write_pictures(documents("html"), pictures)
    if opened:
        page = exports[-1].path
        typer.echo(f"Page: {page}", err=True)
        if not webbrowser.open(page.as_uri()):
            typer.echo("No browser could be started here, so open this file in one.", err=True)


def _write_pictures(documents: Sequence[Document], folder: Path) -> None:
    """Write each picture of some pages into a folder, and print its path."""
    from compare.report.formats.html import pictures_of
    from compare.system.files import write_text

    pictures = pictures_of(documents)
    if not pictures:
        typer.echo("Pictures: none, because nothing that could be drawn was measured.", err=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in pictures.items():
        write_text(folder / f"{name}.svg", svg + "\n")
        typer.echo(f"Picture: {folder / name}.svg", err=True)


def _require_kept(paths: Sequence[Path], exports: Sequence[Export]) -> None:
    """Raise a ``UsageError`` if an export would overwrite the file of a run in ``paths``."""
    from compare.schema.store import result_file

    written = {os.path.realpath(one.path) for one in exports}
    if spoilt := [path for path in paths if os.path.realpath(result_file(path)) in written]:
        raise UsageError(f"{spoilt[0]} holds the run itself.", remedy="Export the report to another file.")


def _find_runs(named: Sequence[Path]) -> list[Path]:
    """Return the folders of the runs that were named; none if all runs of a folder are to be listed."""
    from compare.schema.store import RESULT_FILES, find_run, list_results, result_file

    match named:
        case []:
            return []
        case [folder] if folder.is_dir() and not result_file(folder).exists() and list_results(folder):
            return []
        case _:
            return [find_run(path, RESULT_FILES) for path in named]


def _require_shown(form: str, runs: int) -> None:
    """Raise an error if a format does not show so many ``runs``.

    Raises:
        UsageError: it does not; none are a list of all, which only some formats show.
    """
    most = {**dict.fromkeys((*_OF_ONE_RUN, "csv"), 1), "html": runs}.get(form, _MOST_IN_TABLE)
    if runs > most or (form in {*_OF_ONE_RUN, "csv"} and not runs):
        raise UsageError(
            f"The format {form} shows {'one run' if most == 1 else 'two runs'}.",
            found=f"{runs or 'None'} {'is' if runs == 1 else 'are'} named.",
            remedy="Name another number of runs, or write a page: --open, or --export runs.html."
            if runs
            else "Name one, as `last`.",
        )


def _documents_of(
    paths: Sequence[Path], named: Sequence[Path], form: str, arms: Sequence[str], *, detail: bool
) -> Documents:
    """Return what makes the documents of the runs in ``paths``, or of the list of runs if there are none.

    ``named`` is what the user wrote for the runs.

    Raises:
        OutputError: a result is missing or damaged.
        UsageError: ``arms`` are named without the format of a lesson, or the run does not have one.
    """
    from compare.report import View, document_of
    from compare.schema.store import RUNS, read_result

    if arms and form != "lesson":
        raise UsageError(
            "--arm chooses the arms of a lesson.", remedy="Add --format lesson, or leave out --arm."
        )
    if not paths:
        return _list(named[0] if named else RUNS)
    if form == "lesson":
        return _lesson(paths[0], named[0], arms)
    if form == "summary":
        return _summary(paths[0])
    results = [read_result(path) for path in paths]
    view = View(detail=detail, report_argument=str(named[0]))

    def documents(of_form: str) -> list[Document]:
        each = [document_of(result, of_form, view) for result in results] if of_form == "html" else []
        if len(results) == 1:
            return each or [document_of(results[0], of_form, view)]
        return [*_side_by_side(paths), *each] if len(results) == _MOST_IN_TABLE else each

    return documents


def _list(folder: Path) -> Documents:
    """Return what makes the list of the results in a folder, with the trend of every arm of its runs."""
    from compare.analysis.runs import entry_of, follow_runs
    from compare.report.of_history import document_of
    from compare.schema.store import RESULTS_FILE, kind_of, list_results, read_run

    files = list_results(folder)
    others = {file.parent.name: kind_of(file) for file in files if file.name != RESULTS_FILE}
    entries, unread = [], {}
    for path in [file.parent for file in files if file.name == RESULTS_FILE]:
        try:
            with as_output_error(path):
                entries.append(entry_of(path.name, read_run(path)))
        except OutputError as error:  # one of another version must not conceal the others
            unread[path.name] = error.found
    document = document_of(follow_runs(entries, unread, others), str(folder))
    return lambda _: [document]


def _lesson(path: Path, named: Path, arms: Sequence[str]) -> Documents:
    """Return what makes the lesson of a run; ``arms`` are those to explain, or none for all."""
    from compare.analysis import analyse
    from compare.report.of_lesson import document_of
    from compare.schema.store import read_run

    run = read_run(path)
    labels = [one.label for one in run.config.arms if one.traits.communicates]
    if unknown := [name for name in arms if name not in labels]:
        raise UsageError(
            f"{named} has no arm {unknown[0]} that communicates.",
            remedy=f"Use one of: {', '.join(labels)}." if labels else "None of its arms communicates.",
        )
    return lambda _: [document_of(run, analyse(run), arms)]


def _summary(path: Path) -> Documents:
    """Return what makes the summary of a run."""
    from compare.analysis import analyse
    from compare.report.of_summary import document_of
    from compare.schema.store import read_run

    run = read_run(path)
    return lambda _: [document_of(run, analyse(run))]


def _side_by_side(paths: Sequence[Path]) -> list[Document]:
    """Return the document of what synchronising costs in two runs, as ratios within each."""
    from compare.analysis.change import diff
    from compare.report.changes import document_of
    from compare.schema.store import read_run

    old, new = (read_run(path) for path in paths)
    return [document_of(diff(old, new, (str(paths[0]), str(paths[1]))))]


def _write(documents: Documents, form: str, *, stderr: bool = False, output: Path | None = None) -> None:
    """Print documents in a format, or write them to the file ``output``."""
    from compare.report.formats.html import page_of
    from compare.system.files import write_text

    made = documents(form)
    if form != "html" or len(made) == 1:
        show(made[0], form, stderr=stderr, output=output)
    elif output:
        write_text(output, page_of(made) + "\n")
    else:
        typer.echo(page_of(made), err=stderr)

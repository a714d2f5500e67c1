"""Print results to standard output and all else to standard error, or write results to files.

If standard output or standard error cannot be written, an ``OutputError`` is raised.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import typer

from compare.errors import OutputError, RingsideError, system_reason
from compare.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from compare.analysis.change import Changes
    from compare.cli.flag_options import Export
    from compare.cli.options import LaunchFlags, RankFlags
    from compare.experiment.settle import LaunchRequest
    from compare.report import Result, View
    from compare.report.document import Document

    ResultType = TypeVar("ResultType", bound=Result)
    RequestType = TypeVar("RequestType", bound=LaunchRequest)

ChangeFormat: TypeAlias = Literal["table", "markdown", "json", "github-benchmark"]
"""Formats of ``ringside gate``."""


class ClosedPipeError(OutputError):
    """The reader of our output has closed its pipe, so no message is printed."""


class _CheckedStream:
    """A text stream that raises an ``OutputError`` with its name if it cannot be written."""

    def __init__(self, stream: io.TextIOWrapper, name: str) -> None:
        stream.reconfigure(errors="replace")  # a terminal without a character shows another one
        self._stream = stream
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._named_errors():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._named_errors():
            self._stream.flush()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise ClosedPipeError(f"{self._name} is closed.") from None
        except OSError as error:
            raise OutputError(
                f"{self._name} cannot be written.",
                found=f"{system_reason(error)}.",
                remedy="Redirect it to another file or terminal.",
            ) from None


def wrap_standard_streams() -> None:
    """Make standard output and error raise an ``OutputError`` if they cannot be written."""
    for attribute, name in (("stdout", "Standard output"), ("stderr", "Standard error")):
        stream = getattr(sys, attribute)
        if isinstance(stream, io.TextIOWrapper):
            setattr(sys, attribute, _CheckedStream(stream, name))


def flush_standard_streams() -> None:
    """Flush standard output and error. What cannot be written is discarded, so that Python does not warn."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream:
                stream.flush()
        except OutputError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_notes(error: BaseException) -> None:
    """Print the notes that were added to an error, such as where the finished part of a run is kept."""
    for note in getattr(error, "__notes__", ()):
        typer.echo(printable(note), err=True)


def print_error(error: RingsideError) -> None:
    """Print an error in its three parts, each on lines of its own: what failed, what was found, a remedy."""
    # The parts may hold text from a host or a file.
    what, *parts = map(printable, (error.what, error.found, error.remedy))
    typer.secho(f"error: {what}", fg=typer.colors.RED, bold=True, err=True)
    for part in parts:
        if part:
            typer.echo("  " + part.replace("\n", "\n  "), err=True)


def make_console(*, stderr: bool = False) -> Console:
    """Make a console for standard output or standard error, as wide as the terminal.

    For a file or a pipe, it is as wide as the widest table unless ``COLUMNS`` is set.
    """
    from rich.console import Console

    from compare.report.formats.terminal import PLAIN_WIDTH

    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PLAIN_WIDTH
    return console


def make_say(console: Console, *, quiet: bool = False) -> Callable[[str], None]:
    """Return a function that prints a dim line to the console, or one that prints nothing if ``quiet``."""
    if quiet:
        return lambda _line: None
    return lambda line: console.print(printable(line), style="dim", markup=False, soft_wrap=True)


def show(
    document: Document, form: str = "table", *, stderr: bool = False, output: Path | None = None
) -> None:
    """Print a document in the format ``form``, or write it to the file ``output``.

    A printed table is as wide as the terminal.
    """
    from compare.report.formats import write
    from compare.report.formats.terminal import print_document
    from compare.system.files import write_text

    if output:
        write_text(output, write(document, form) + "\n")
    elif form == "table":
        print_document(document, make_console(stderr=stderr))
    else:
        typer.echo(write(document, form), err=stderr)


def show_and_export(document: Document, exports: Sequence[Export], form: str = "table") -> None:
    """Print a document and write it to files; print to standard error if a file is standard output."""
    from compare.system.files import STANDARD_OUTPUT

    for one in exports:
        show(document, one.form, output=one.path)
    show(document, form, stderr=STANDARD_OUTPUT in [one.path for one in exports])


@contextmanager
def as_output_error(*paths: Path) -> Iterator[None]:
    """Turn errors while stored results are analysed or shown into an ``OutputError`` that names ``paths``.

    A stored file may fit the schema and still hold what no command writes, because it was edited.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        names = "; ".join(map(str, paths))
        raise OutputError(
            f"{names} cannot be shown, because its content is not what Ringside writes.",
            found=f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno}).",
            remedy="If it was edited, restore it or measure again. If not, please report this as a bug.",
        ) from error


def show_changes(changes: Changes, form: ChangeFormat, *, stderr: bool = False) -> None:
    """Print the changes that a gate found, in the format ``form``."""
    from compare.report.changes import benchmark, document_of

    if form == "github-benchmark":
        typer.echo(benchmark(changes), err=stderr)
    else:
        show(document_of(changes), form, stderr=stderr)


def carry_out(
    start: Callable[..., tuple[ResultType, Path]],
    request: RequestType,
    flags: LaunchFlags,
    view: View | None = None,
    *,
    counts: int = 1,
    exporting: Callable[[ResultType], None] | None = None,
) -> tuple[ResultType, Path]:
    """Carry out a request by ``start``, a function of ``compare.experiment``, and export its result.

    If the request is stopped or fails, what was saved until then is exported as well. ``exporting`` is called
    in place of ``export``, if it is given. ``counts`` is how many numbers of ranks are launched: the
    progress display expects all launches of the configuration for each of them.

    Returns:
        The result, and the path of its folder.
    """
    from dataclasses import replace

    from compare.report.progress import LiveProgress

    log = make_console(stderr=True)
    write: Callable[[ResultType], None] = exporting or partial(export, exports=flags.exports, view=view)
    with request.allocation.opened() as allocation:
        result, directory = start(
            replace(request, allocation=allocation),
            make_say(log, quiet=flags.quiet),
            partial(LiveProgress, log, verbose=flags.verbose, quiet=flags.quiet, counts=counts),
            write,
        )
    write(result)
    return result, directory


def export(result: Result, exports: Sequence[Export], view: View | None = None) -> None:
    """Write a result to files, each in its format.

    Raises:
        OutputError: a file cannot be written; all other files are written before it is raised.
    """
    from compare.report import View, document_of

    errors = []
    for form, path in exports:
        try:
            show(document_of(result, form, view or View()), form, output=path)
        except OutputError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def print_result(document: Document, directory: Path, flags: RankFlags, form: str = "table") -> None:
    """Print the folder of a result, and then the result itself as its ``document``.

    Both go to standard error if an export takes standard output. The folder also does so if ``form`` is not
    ``table``, because programs may read the other formats.
    """
    from compare.system.files import STANDARD_OUTPUT

    stderr = STANDARD_OUTPUT in [one.path for one in flags.exports]
    make_say(make_console(stderr=stderr or form != "table"), quiet=flags.quiet)(f"Results: {directory}")
    show(document, form, stderr=stderr)

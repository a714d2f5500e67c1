"""Print results to standard output and all else to standard error."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from compare.errors import RingsideError
from compare.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from compare.cli.options import LaunchFlags
    from compare.report.progress import LiveProgress


def make_console(*, stderr: bool = False) -> Console:
    """Make a console as wide as the terminal.

    For a file or a pipe it is as wide as the widest table, unless ``COLUMNS`` is set.
    """
    from rich.console import Console

    from compare.report.formats.terminal import PLAIN_WIDTH

    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PLAIN_WIDTH
    return console


def make_say(console: Console, *, quiet: bool = False) -> Callable[[str], None]:
    """Return a function that prints one dim line, or nothing if ``quiet``."""
    if quiet:
        return lambda _line: None
    return lambda line: console.print(printable(line), style="dim", markup=False, soft_wrap=True)


def make_watch(console: Console, flags: LaunchFlags, *, counts: int = 1) -> Callable[[Any], LiveProgress]:
    """Return a function that makes, for a config, the observer that shows progress on this console.

    ``counts`` is how many numbers of ranks there are; each has all launches of the config.
    """
    from compare.report.progress import LiveProgress

    return lambda config: LiveProgress(
        console, config, verbose=flags.verbose, quiet=flags.quiet, counts=counts
    )


def print_notes(error: BaseException) -> None:
    """Print the notes of an error, which say what was kept and where."""
    for note in getattr(error, "__notes__", ()):
        typer.echo(printable(note), err=True)


def print_error(error: RingsideError) -> None:
    """Print an error in its three parts: what is wrong, what was found, and the remedy."""
    # The parts may hold text from a host or a file.
    what, *parts = map(printable, (error.what, error.found, error.remedy))
    typer.secho(f"error: {what}", fg=typer.colors.RED, bold=True, err=True)
    for part in parts:
        if part:
            typer.echo("  " + part.replace("\n", "\n  "), err=True)

"""Print changes, export them, and turn their outcome into an exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compare.cli.choices import ChangeFormat, Format
from compare.cli.options import output_flag
from compare.cli.run import export_run
from compare.cli.show import show
from compare.errors import SlowerError, TooNoisyError, UsageError

if TYPE_CHECKING:
    from compare.analysis.change import Changes
    from compare.cli.options import RunFlags
    from compare.schema.results import Run

ExportJUnit = Annotated[
    Path | None, output_flag("--export-junit", help="Also write JUnit XML here, one test for each arm.")
]


def read_percent(written: str) -> float:
    """Return a percentage, written as ``5%`` or ``5``, as a fraction.

    Raises:
        UsageError: it is no percentage above 0 and below 1000.
    """
    try:
        value = float(written.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 < value < 1000:  # noqa: PLR2004 -- ten times slower
        raise UsageError(
            f"--fail-if-slower cannot be {written}.", remedy="Use a percentage above 0, such as 5%."
        )
    return value / 100


def print_changes(changes: Changes, form: ChangeFormat, *, stderr: bool = False) -> None:
    """Print what a gate or ``compare diff`` found, in one format."""
    from compare.report.changes import benchmark, document_of

    if form is ChangeFormat.BENCHMARK:
        typer.echo(benchmark(changes), err=stderr)
    else:
        show(document_of(changes), Format(form.value), stderr=stderr)


def write_junit(gate: Changes, path: Path | None) -> None:
    """Write a gate as JUnit XML to a file; None writes nothing."""
    from compare.report.changes import junit
    from compare.system.files import write_text

    if path:
        write_text(path, junit(gate) + "\n")


def export_unfinished(run: Run, *, flags: RunFlags, junit: Path | None) -> None:
    """Export the run of a gate that ended early; the JUnit file, if any, gets an error with the reason."""
    from compare.report.changes import junit_of_early_end
    from compare.system.files import write_text

    try:
        export_run(run, flags)
    finally:
        if junit:
            write_text(junit, junit_of_early_end(run) + "\n")


def require_passed(gate: Changes) -> None:
    """Raise an error unless every arm passed.

    The printed changes end with their conclusion, so the error does not repeat it.

    Raises:
        SlowerError: an arm is slower.
        TooNoisyError: an arm is open, or none was compared.
    """
    if gate.outcome == "slower":
        raise SlowerError(
            f"The gate did not pass (exit code {SlowerError.exit_code}).",
            remedy="Find the cause with `compare report`, or allow more with --fail-if-slower.",
        )
    if gate.outcome == "too noisy":
        raise TooNoisyError(
            f"The gate stays open (exit code {TooNoisyError.exit_code}).",
            remedy="Stop other programs, or use a longer --budget. A larger limit needs less time.",
        )

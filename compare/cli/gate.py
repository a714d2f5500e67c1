"""Compare two interpreters in one run: ``ringside gate``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from compare.cli.flag_options import SUFFIXES, Export, read_exports
from compare.cli.options import (
    TimedFlags,
    arms_flag,
    length_flag,
    output_flag,
    output_option,
    time_flag,
    with_flags,
)
from compare.cli.output import ChangeFormat, carry_out, export, make_console, make_say, show, show_changes
from compare.cli.requests import read_request
from compare.errors import SlowerError, TooNoisyError, UsageError

if TYPE_CHECKING:
    from compare.analysis.change import Changes
    from compare.schema.results import Run


@dataclass(frozen=True, kw_only=True)
class GateFlags(TimedFlags):
    """The flags of a gate, which may export JUnit XML as well."""

    @property
    def exports(self) -> list[Export]:
        """Return the files to export to, each with its format; ``.xml`` is JUnit."""
        return read_exports(self.export, {**SUFFIXES, ".xml": "junit"})


@with_flags(
    GateFlags,
    {"steps": "150"},
    backend=Annotated[
        list[str] | None,
        arms_flag(
            metavar="ARMS", show_default="ddp", help="Arms; `none` is the computation alone. Each runs twice."
        ),
    ],
    output=Annotated[Path | None, output_option("-gate")],
    export=Annotated[
        list[str] | None,
        output_flag(
            metavar="FILE",
            help="Also write the gate here: .md for a summary, .xml for JUnit with a test for each arm, or "
            "the whole run as .json, .csv or .html. Repeatable. `-` is JSON on standard output.",
        ),
    ],
)
def gate(
    flags: GateFlags,
    *,
    against: Annotated[
        str,
        arms_flag(metavar="PYTHON", help="Interpreter of the other environment: its state is the old one."),
    ],
    fail_if_slower: Annotated[
        str, output_flag(metavar="PERCENT", help="Fail if an arm is slower by more.")
    ] = "5%",
    repeats: Annotated[
        int | None,
        length_flag(
            show_default="5, then until every arm is settled, one is slower, or 5 min are over",
            help="Rounds; each launches every arm in both environments.",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        time_flag(
            help="Maximum time, in seconds or as 5m: add rounds until every arm is settled, or one is slower."
        ),
    ] = None,
    form: Annotated[ChangeFormat, output_flag("--format", help="What to print.")] = "table",
) -> None:
    """Compare this environment with another one, in turns of one run.

    Two torch versions, commits or settings are alive side by side. It sees a slower
    computation as well; two runs in `ringside report` show only what synchronising costs.

    The exit code is 14 if an arm is slower, and 15 if that is open.
    """
    from compare.analysis import analyse
    from compare.experiment import compare_arms
    from compare.experiment.settle import choose_length
    from compare.system.files import STANDARD_OUTPUT

    request = read_request(
        replace(flags, backend=flags.backend or ["ddp"]),
        against=against,
        slower_limit=read_percent(fail_if_slower),
        **choose_length(repeats, budget),
    )
    run, directory = carry_out(compare_arms, request, flags, exporting=partial(_export, flags=flags))
    changes = analyse(run).gate
    assert changes is not None  # noqa: S101 -- the run has a limit and twins
    to_stdout = STANDARD_OUTPUT in [one.path for one in flags.exports]
    say_to_stderr = to_stdout or form != "table"
    make_say(make_console(stderr=say_to_stderr), quiet=flags.quiet)(f"Results: {directory}")
    show_changes(changes, form, stderr=to_stdout)
    require_passed(changes)


def _export(run: Run, *, flags: GateFlags) -> None:
    """Export the run of a gate. JUnit and, if it is complete, Markdown show the changes and not the run."""
    from compare.analysis import analyse
    from compare.report.changes import document_of, junit
    from compare.system.files import write_text

    changes = analyse(run).gate if run.complete else None
    of_changes = {"junit", "markdown"} if changes else {"junit"}
    try:
        export(run, [one for one in flags.exports if one.form not in of_changes])
    finally:
        for form, path in flags.exports:
            if form == "junit":
                write_text(path, junit(changes, run.failure) + "\n")
            elif form in of_changes and changes:
                show(document_of(changes), form, output=path)


def read_percent(written: str) -> float:
    """Return a percentage, written as ``5%`` or ``5``, as a fraction: 0.05.

    Raises:
        UsageError: the text is not a percentage above 0 and below 1000.
    """
    try:
        value = float(written.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 < value < 1000:  # noqa: PLR2004 -- ten times slower
        raise UsageError(
            f"--fail-if-slower cannot be {written}.",
            remedy="Use a percentage above 0 and below 1000, such as 5%.",
        )
    return value / 100


def require_passed(gate: Changes) -> None:
    """Raise an error unless every arm passed the gate.

    The output of a gate ends with its conclusion, so the error does not repeat it.

    Raises:
        SlowerError: an arm is slower by more than the limit.
        TooNoisyError: it is open whether an arm is slower, or not every arm was compared.
    """
    if gate.outcome == "slower":
        raise SlowerError(
            f"The gate did not pass (exit code {SlowerError.exit_code}).",
            remedy="Find the cause with `ringside report` and the folder of the results, or allow more with "
            "--fail-if-slower.",
        )
    if gate.outcome == "too noisy":
        budget = "use the --budget that the conclusion names, " if gate.needed_seconds is not None else ""
        raise TooNoisyError(
            f"The gate could not be decided (exit code {TooNoisyError.exit_code}).",
            remedy=f"Stop other programs, {budget}or allow more with --fail-if-slower. Ranks and threads "
            "must not outnumber the cores.",
        )

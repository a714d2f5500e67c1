"""Compare two interpreters in one run: ``compare gate``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from compare.cli.choices import ChangeFormat, Format
from compare.cli.console import make_console, make_say
from compare.cli.gating import (
    ExportJUnit,
    export_unfinished,
    print_changes,
    read_percent,
    require_passed,
    write_junit,
)
from compare.cli.options import (
    MaxReruns,
    RunFlags,
    arms_flag,
    length_flag,
    output_flag,
    output_option,
    time_flag,
    training_flag,
    with_run_flags,
)
from compare.cli.requests import read_request
from compare.cli.run import carry_out_and_export
from compare.cli.show import show

if TYPE_CHECKING:
    from compare.experiment.settle import UserRequest


@with_run_flags(
    backend=Annotated[
        list[str] | None,
        arms_flag(show_default="ddp", help="Arms; `none` is the computation alone. Each runs twice."),
    ],
    output=Annotated[Path | None, output_option("-gate")],
    export_markdown=Annotated[
        Path | None, output_flag(help="Also write a Markdown summary of the gate here.")
    ],
)
def gate(
    flags: RunFlags,
    *,
    against: Annotated[
        str,
        arms_flag(metavar="PYTHON", help="Interpreter of the other environment: its state is the old one."),
    ],
    fail_if_slower: Annotated[
        str, output_flag(metavar="PERCENT", help="Fail if an arm is slower by more.")
    ] = "5%",
    steps: Annotated[int, training_flag(help="Training steps of a launch.")] = 150,
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
    max_reruns: MaxReruns = 3,
    form: Annotated[ChangeFormat, output_flag("--format", help="What to print.")] = ChangeFormat.TABLE,
    export_junit: ExportJUnit = None,
) -> None:
    """Compare this environment with another one, in turns of one run.

    Two torch versions, commits or settings are alive side by side. It sees a slower
    computation as well; `compare diff` sees only what synchronising costs.

    The exit code is 14 if an arm is slower, and 15 if that is open.
    """
    from compare.experiment.settle import choose_length
    from compare.launch.interpreter import find_interpreter
    from compare.schema.store import require_writable

    other = find_interpreter(against)
    if export_junit:
        require_writable(export_junit, to_be_made=flags.output)
    request = read_request(
        replace(flags, backend=flags.backend or ["ddp"]),
        steps=steps,
        warmup_steps=flags.warmup,
        max_reruns=max_reruns,
        interleave=flags.interleave.value,
        slower_limit=read_percent(fail_if_slower),
        **choose_length(repeats, budget),
    )
    _carry_out(replace(request, against=other), flags, form, export_junit)


def _carry_out(request: UserRequest, flags: RunFlags, form: ChangeFormat, export_junit: Path | None) -> None:
    """Carry out a gate, export and print it, and raise an error unless it passed."""
    from compare.report.changes import document_of

    # The Markdown of this command is that of the gate, not that of the run.
    _, directory, analysis = carry_out_and_export(
        request,
        replace(flags, export_markdown=None),
        partial(export_unfinished, flags=flags, junit=export_junit),
    )
    changes = analysis.gate
    assert changes is not None  # noqa: S101 -- the run has a limit and twins
    if flags.export_markdown:
        show(document_of(changes), Format.MARKDOWN, output=flags.export_markdown)
    write_junit(changes, export_junit)
    to_stdout = flags.exports_to_stdout or export_junit == Path("-")
    say_to_stderr = to_stdout or form is not ChangeFormat.TABLE
    make_say(make_console(stderr=say_to_stderr), quiet=flags.quiet)(f"Results: {directory}")
    print_changes(changes, form, stderr=to_stdout)
    require_passed(changes)

"""Run arms side by side: ``compare run``."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from compare.cli.console import make_console, make_say, make_watch
from compare.cli.options import (
    MaxReruns,
    RunFlags,
    arms_flag,
    length_flag,
    output_flag,
    time_flag,
    training_flag,
    with_run_flags,
)
from compare.cli.requests import read_request
from compare.cli.show import export, show

if TYPE_CHECKING:
    from compare.analysis import Analysis
    from compare.experiment.plan import Plan
    from compare.experiment.settle import UserRequest
    from compare.schema.results import Run


@with_run_flags()
def run(
    flags: RunFlags,
    *,
    epochs: Annotated[int, training_flag(help="Passes over the training set.")] = 1,
    steps: Annotated[int | None, training_flag(help="Training steps, instead of epochs.")] = None,
    repeats: Annotated[
        int | None,
        length_flag(
            show_default="5, then until every verdict is settled or 5 min are over",
            help="Rounds; each launches every arm once.",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        time_flag(help="Maximum time, in seconds or as 5m: add rounds until every verdict is settled."),
    ] = None,
    max_reruns: MaxReruns = 3,
    baseline: Annotated[
        str | None,
        arms_flag(show_default="the first named", help="Arm that the others are compared with."),
    ] = None,
    control: Annotated[
        bool, arms_flag("--control/--no-control", help="Also run the ranks without communication.")
    ] = True,
    dry_run: Annotated[
        bool,
        output_flag(
            "--dry-run", help="Print what would run, where and for how long; with -v its environment too."
        ),
    ] = False,
    strict: Annotated[
        bool, output_flag("--strict", help="Fail if the arms ran under different conditions.")
    ] = False,
) -> None:
    """Run the same training through every arm, side by side."""
    from compare.experiment import plan
    from compare.experiment.settle import choose_length

    request = read_request(
        flags,
        baseline=baseline,
        control=control,
        epochs=epochs,
        steps=steps,
        warmup_steps=flags.warmup,
        max_reruns=max_reruns,
        interleave=flags.interleave.value,
        **choose_length(repeats, budget),
    )
    if dry_run:
        _print_plan(plan(request), verbose=flags.verbose)
        return
    analysis = carry_out_and_print(request, flags)
    if strict:
        _require_same_conditions(analysis)


def carry_out_and_print(request: UserRequest, flags: RunFlags) -> Analysis:
    """Carry out a run, export and print it, and return its analysis."""
    run, directory, analysis = carry_out_and_export(request, flags)
    _print(run, directory, analysis, flags)
    return analysis


def carry_out_and_export(
    request: UserRequest, flags: RunFlags, export_early_end: Callable[[Run], None] | None = None
) -> tuple[Run, Path, Analysis]:
    """Carry out a run, export it, and return it with its folder and its analysis.

    A run that is stopped or fails is exported as far as it was saved. ``export_early_end`` does that in place
    of ``export_run``.
    """
    from compare.analysis import analyse
    from compare.experiment import compare_arms

    log = make_console(stderr=True)
    run, directory = compare_arms(
        request,
        make_say(log, quiet=flags.quiet),
        make_watch(log, flags),
        export_early_end or partial(export_run, flags=flags),
    )
    analysis = analyse(run)
    export_run(run, flags)
    return run, directory, analysis


def export_run(run: Run, flags: RunFlags) -> None:
    """Write a run to every file that the flags name."""
    export(run, flags, detail=flags.detail, sort=flags.sort)


def _print(run: Run, directory: Path, analysis: Analysis, flags: RunFlags) -> None:
    """Print the table of a run, to standard error if an export takes standard output."""
    from compare.report import View, document_of
    from compare.schema.store import name_of_run

    to_stderr = flags.exports_to_stdout
    make_say(make_console(stderr=to_stderr), quiet=flags.quiet)(f"Results: {directory}")
    view = View(wide=flags.wide, detail=flags.detail, sort=flags.sort, report_argument=name_of_run(directory))
    show(document_of(run, view=view, analysis=analysis), stderr=to_stderr)


def _require_same_conditions(analysis: Analysis) -> None:
    from compare.errors import ConditionsError
    from compare.report.limits import describe_condition

    if analysis.different:
        raise ConditionsError(
            "The arms ran under different conditions, which --strict does not allow.",
            found="\n".join(map(describe_condition, analysis.different)),
            remedy="Make them equal, or declare the difference as an option of an arm. The results are kept.",
        )


def _print_plan(plan: Plan, *, verbose: bool) -> None:
    """Print what would run, and its command lines; ``verbose`` adds environments and jobs."""
    from compare.report.progress import planned_time

    console = make_console()

    def say(line: str, indent: int = 0) -> None:
        console.print(" " * indent + line, soft_wrap=True, markup=False, highlight=False)

    say(planned_time(plan.config, plan.round_seconds, in_turns=plan.in_turns))
    for line in plan.notes:
        say(line)
    for launch in plan.launches:
        for command in launch.commands:
            where = f" on {command.host.name}" if command.host else ""
            say(f"\n{launch.job.arm.label}{where}")
            for name, value in command.environment.items() if verbose else ():
                say(f"{name}={shlex.quote(value)} \\", 2)
            say(shlex.join(command.argv), 2)
        if verbose:
            say(f"job.json: {msgspec.json.encode(launch.job).decode()}", 2)

"""Run arms side by side: ``compare run``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compare.cli.console import make_console, make_say
from compare.cli.options import (
    MaxReruns,
    RunFlags,
    read_request,
    with_run_flags,
)

if TYPE_CHECKING:
    from compare.analysis import Analysis
    from compare.experiment.run import Plan
    from compare.schema.results import Run


@with_run_flags()
def run(
    flags: RunFlags,
    *,
    epochs: Annotated[int, typer.Option(help="Passes over the training set.")] = 1,
    steps: Annotated[int | None, typer.Option(help="Training steps, instead of epochs.")] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            show_default="5, then until every verdict is settled or 5 min are over",
            help="Rounds; each launches every arm once.",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Maximum time in seconds: add rounds until every verdict is settled."),
    ] = None,
    max_reruns: MaxReruns = 3,
    baseline: Annotated[
        str | None,
        typer.Option(show_default="the first named", help="Arm that the others are compared with."),
    ] = None,
    control: Annotated[
        bool, typer.Option("--control/--no-control", help="Also run the ranks without communication.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands of one round, and stop.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail if the arms ran under different conditions.")
    ] = False,
) -> None:
    """Run the same training through every arm, side by side."""
    from compare.experiment import compare_arms, plan
    from compare.experiment.settle import choose_length
    from compare.report.progress import LiveProgress

    request = read_request(
        flags,
        baseline=baseline,
        control=control,
        epochs=epochs,
        steps=steps,
        warmup_steps=flags.warmup,
        max_reruns=max_reruns,
        interleave=flags.interleave,
        **choose_length(repeats, budget),
    )
    log = make_console(stderr=True)
    if dry_run:
        _print_plan(plan(request, make_say(log)))
        return
    result, directory = compare_arms(
        request, make_say(log), lambda config: LiveProgress(log, config, verbose=flags.verbose)
    )
    analysis = print_run(result, directory, flags)
    if strict:
        _require_same_conditions(analysis)


def print_run(run: Run, directory: Path, flags: RunFlags) -> Analysis:
    """Analyse a run, print it, and export it if asked to."""
    from compare.analysis import analyse
    from compare.report import arrange, render
    from compare.report.table import RunTable
    from compare.schema.files import write_text
    from compare.schema.store import name_of_run

    console, analysis = make_console(), analyse(run)
    if flags.export_json:
        write_text(flags.export_json, render(run, analysis, "json") + "\n")
    make_say(console)(f"Results: {directory}")
    again, arranged = name_of_run(directory), arrange(analysis, flags.sort)
    console.print(RunTable(run, arranged, wide=flags.wide, detail=flags.detail, again=again))
    return analysis


def _require_same_conditions(analysis: Analysis) -> None:
    from compare.errors import ConditionsError
    from compare.report.notes import describe_condition

    if analysis.different:
        raise ConditionsError(
            "The arms ran under different conditions, which --strict does not allow.",
            found="\n".join(map(describe_condition, analysis.different)),
            remedy="Make them equal, or declare the difference as an option of an arm. The results are kept.",
        )


def _print_plan(plan: Plan) -> None:
    console = make_console()
    for section in plan:
        console.print(f"# {section.title}", soft_wrap=True, markup=False, style="dim")
        console.print(section.text, soft_wrap=True, markup=False)

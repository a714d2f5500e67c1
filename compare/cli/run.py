"""Run arms side by side: ``ringside run``."""

from __future__ import annotations

from typing import Annotated

from compare.cli.options import (
    DryRun,
    TimedFlags,
    arms_flag,
    length_flag,
    output_flag,
    steps_flag,
    time_flag,
    with_flags,
)
from compare.cli.output import carry_out, make_console, make_say, print_result, show_and_export
from compare.cli.requests import read_request
from compare.errors import ConditionsError


@with_flags(TimedFlags, steps=Annotated[str | None, steps_flag(show_default="1epoch")])
def run(
    flags: TimedFlags,
    *,
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
    baseline: Annotated[
        str | None,
        arms_flag(metavar="ARM", show_default="the first named", help="Arm that others are compared with."),
    ] = None,
    control: Annotated[
        bool, arms_flag("--control/--no-control", help="Also run the ranks without communication.")
    ] = True,
    dry_run: DryRun = False,
    strict: Annotated[
        bool, output_flag("--strict", help="Fail if the arms ran under different conditions.")
    ] = False,
) -> None:
    """Run the same training through every arm, side by side.

    One arm that is named twice, as mpi,mpi, is compared with itself: an A/A test.
    """
    from compare.analysis import analyse
    from compare.experiment import compare_arms, plan
    from compare.experiment.settle import choose_length
    from compare.report import View, document_of, of_plan
    from compare.schema.store import name_of_run

    length = choose_length(repeats, budget)
    request = read_request(flags, baseline=baseline, control=control, with_aa_test=True, **length)
    if dry_run:
        planned = plan(request, make_say(make_console(stderr=True), quiet=flags.quiet))
        show_and_export(of_plan.document_of(planned, verbose=flags.verbose), flags.exports)
        return
    result, directory = carry_out(compare_arms, request, flags)
    analysis = analyse(result)
    view = View(report_argument=name_of_run(directory))
    print_result(document_of(result, view=view, analysis=analysis), directory, flags)
    if strict and analysis.unexplained_differences:
        from compare.report.origin import describe_condition

        raise ConditionsError(
            "The arms ran under different conditions, which --strict does not allow.",
            found="\n".join(map(describe_condition, analysis.unexplained_differences)),
            remedy="Make the conditions equal, or declare the difference as an option of an arm. The results "
            "are kept.",
        )

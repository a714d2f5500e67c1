"""Compare several numbers of ranks: ``ringside scale``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from compare.cli.options import (
    DryRun,
    Formats,
    TimedFlags,
    arms_flag,
    hosts_flag,
    length_flag,
    output_option,
    training_flag,
    with_flags,
)
from compare.cli.output import carry_out, make_console, make_say, print_result, show_and_export
from compare.cli.requests import read_request
from compare.errors import UsageError


@with_flags(
    TimedFlags,
    {"steps": "150"},
    num_proc=Annotated[str | None, hosts_flag("-np", "--num-proc", help="Numbers of ranks: 1,2,4.")],
    batch_size=Annotated[
        int, training_flag(help="Samples per rank and pass; with --strong, of all ranks together.")
    ],
    output=Annotated[Path | None, output_option(name="runs/<time>-<model>-np<most>-<weak or strong>")],
)
def scale(
    flags: TimedFlags,
    *,
    weak: Annotated[
        bool, hosts_flag("--weak/--strong", help="Keep the batch of each rank, or the global batch.")
    ] = True,
    repeats: Annotated[int, length_flag(help="Rounds; each launches every arm with every count.")] = 5,
    control: Annotated[
        bool, arms_flag("--control/--no-control", help="Also run the ranks without communication.")
    ] = True,
    dry_run: DryRun = False,
    form: Formats = "table",
) -> None:
    """Run arms with several numbers of ranks; find where they bend."""
    from compare.experiment import ScaleRequest, plan_scale, scale_arms
    from compare.report import document_of, of_plan
    from compare.schema.scale import read_counts

    if flags.num_proc is None:
        raise UsageError("ringside scale needs numbers of ranks.", remedy="Name two or more: -np 1,2,4.")
    counts = read_counts(str(flags.num_proc))
    with_most_ranks = replace(flags, num_proc=counts[-1])
    arms_request = read_request(with_most_ranks, control=control, rounds=repeats)
    request = ScaleRequest(**vars(arms_request), mode="weak" if weak else "strong", counts=counts)
    if dry_run:
        planned = plan_scale(request, make_say(make_console(stderr=True), quiet=flags.quiet))
        show_and_export(of_plan.document_of(planned, counts=counts, verbose=flags.verbose), flags.exports)
        return
    result, directory = carry_out(scale_arms, request, flags, counts=len(counts))
    print_result(document_of(result), directory, flags, form)

"""Compare an arm with itself: ``compare aa``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compare.cli.console import make_console, make_say
from compare.cli.options import MaxReruns, RunFlags, output_option, read_request, with_run_flags
from compare.cli.run import print_run
from compare.errors import UsageError


@with_run_flags(
    backend=Annotated[list[str] | None, typer.Option(help="The one arm that is compared with itself.")],
    output=Annotated[Path | None, output_option("-aa")],
)
def aa(
    flags: RunFlags,
    *,
    comparisons: Annotated[int, typer.Option(min=1, help="Number of comparisons.")] = 10,
    repeats: Annotated[int, typer.Option(min=5, help="Rounds of each comparison.")] = 5,
    steps: Annotated[int, typer.Option(help="Training steps of a launch.")] = 150,
    max_reruns: MaxReruns = 10,
) -> None:
    """Compare an arm with itself, as an A/A test.

    How often does this tool report a difference where none exists?
    """
    from compare.experiment import compare_arms
    from compare.report.progress import LiveProgress

    request = read_request(
        flags,
        steps=steps,
        warmup_steps=flags.warmup,
        rounds=comparisons * repeats,
        comparisons=comparisons,
        max_reruns=max_reruns,
        interleave=flags.interleave,
    )
    if len(request.arms) != 1:
        raise UsageError(
            f"--backend names {len(request.arms)} arms; an A/A test takes one.",
            remedy="Name one, such as ddp.",
        )
    log = make_console(stderr=True)
    result, directory = compare_arms(
        request, make_say(log), lambda config: LiveProgress(log, config, verbose=flags.verbose)
    )
    print_run(result, directory, flags)

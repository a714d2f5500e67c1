"""Prove what the arms train: ``ringside verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compare.cli.options import TrainingFlags, output_option, with_flags
from compare.cli.output import carry_out, print_result
from compare.cli.requests import read_request


@with_flags(TrainingFlags, output=Annotated[Path | None, output_option("-verify")])
def verify(shared: TrainingFlags) -> None:
    """Prove that every arm trains what a single process would."""
    from compare.experiment import verify_arms
    from compare.report import View, document_of
    from compare.schema.job import STEPS
    from compare.schema.store import name_of_run

    request = read_request(shared, may_share_gpus=True, steps=STEPS, warmup_steps=0, rounds=1)
    verification, directory = carry_out(verify_arms, request, shared)
    view = View(detail=shared.verbose, report_argument=name_of_run(directory))
    print_result(document_of(verification, view=view), directory, shared)
    raise typer.Exit(verification.exit_code)

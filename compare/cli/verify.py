"""Prove what the arms train: ``compare verify``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from compare.cli.console import make_console, make_say, make_watch
from compare.cli.options import Shared, output_option, with_shared
from compare.cli.requests import read_request
from compare.cli.show import export, show


@with_shared(output=Annotated[Path | None, output_option("-verify")])
def verify(shared: Shared) -> None:
    """Prove that every arm trains what a single process would."""
    from compare.experiment import verify_arms
    from compare.report import document_of
    from compare.schema.job import STEPS

    request = read_request(shared, steps=STEPS, warmup_steps=0, rounds=1)
    log = make_console(stderr=True)

    verification, directory = verify_arms(
        request,
        make_say(log, quiet=shared.quiet),
        make_watch(log, shared),
        partial(export, flags=shared),
    )
    export(verification, shared)
    console = make_console(stderr=shared.exports_to_stdout)
    console.print()
    show(document_of(verification), stderr=shared.exports_to_stdout)
    make_say(console, quiet=shared.quiet)(f"Results: {directory}")
    raise typer.Exit(verification.exit_code)

"""Prove what the arms train: ``compare verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compare.cli.console import make_console, make_say
from compare.cli.options import (
    Shared,
    output_flag,
    output_option,
    read_request,
    with_shared,
)


@with_shared(
    output=Annotated[Path | None, output_option("-verify")],
    export_json=Annotated[Path | None, output_flag(help="Also write the verification here.")],
)
def verify(shared: Shared) -> None:
    """Prove that every arm trains what a single process would."""
    from compare.experiment import verify_arms
    from compare.report.progress import LiveProgress
    from compare.report.verification import renderable
    from compare.schema.files import write_json
    from compare.schema.job import STEPS

    request = read_request(shared, steps=STEPS, warmup_steps=0, rounds=1)
    log = make_console(stderr=True)
    verification, directory = verify_arms(
        request, make_say(log), lambda config: LiveProgress(log, config, verbose=shared.verbose)
    )
    if shared.export_json:
        write_json(shared.export_json, verification)
    console = make_console(stderr=shared.exports_to_stdout)
    console.print()
    console.print(renderable(verification))
    make_say(console)(f"Results: {directory}")
    raise typer.Exit(verification.exit_code)

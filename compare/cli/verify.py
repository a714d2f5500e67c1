"""Prove what the arms train: ``compare verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compare.cli.choices import Format
from compare.cli.console import make_console, make_say, make_watch
from compare.cli.exports import write_exports
from compare.cli.options import Shared, output_option, with_shared
from compare.cli.requests import read_request

if TYPE_CHECKING:
    from compare.schema.results import Verification


@with_shared(output=Annotated[Path | None, output_option("-verify")])
def verify(shared: Shared) -> None:
    """Prove that every arm trains what a single process would."""
    from compare.experiment import verify_arms
    from compare.report.verification import renderable
    from compare.schema.job import STEPS

    request = read_request(shared, steps=STEPS, warmup_steps=0, rounds=1)
    log = make_console(stderr=True)

    def export(kept: Verification) -> None:
        write_exports(shared, lambda form: render_verification(kept, form))

    verification, directory = verify_arms(
        request,
        make_say(log, quiet=shared.quiet),
        make_watch(log, shared),
        export,
    )
    export(verification)
    console = make_console(stderr=shared.exports_to_stdout)
    console.print()
    console.print(renderable(verification))
    make_say(console, quiet=shared.quiet)(f"Results: {directory}")
    raise typer.Exit(verification.exit_code)


def render_verification(verification: Verification, form: str) -> str:
    """Render a verification, without a newline at the end."""
    from compare.report.verification import VERIFICATION_RENDERERS

    if form == Format.HTML:
        from compare.report.html import page_of
        from compare.report.html.sheets import of_verification

        return page_of([of_verification(verification)])
    return VERIFICATION_RENDERERS[form](verification)

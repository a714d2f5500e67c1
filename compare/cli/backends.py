"""List the backends: ``ringside backends``."""

from __future__ import annotations

from typing import Annotated

import typer

from compare.cli.options import Formats
from compare.cli.output import make_console, make_say, show


def backends(
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BACKEND]...", show_default=False, help="Show these alone: ddp, fsdp."),
    ] = None,
    form: Formats = "table",
) -> None:
    """List the backends with version, transport and options.

    For a backend that is missing, show the reason and the remedy.
    """
    from compare.doctor.availability import survey
    from compare.doctor.backends_table import document_of
    from compare.schema.arms import parse_arms

    wanted = [arm.backend for arm in parse_arms(names or [])]
    show(document_of(survey(wanted, make_say(make_console(stderr=True)))), form)

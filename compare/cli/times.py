"""Read the times that flags take."""

from __future__ import annotations

import typer

from compare.text import seconds_of


def read_seconds(written: str | float) -> float:
    """Read a time in seconds, or with a unit.

    Raises:
        BadParameter: it is neither; the parser adds the flag, or the file with its key.
    """
    try:
        return seconds_of(str(written))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None

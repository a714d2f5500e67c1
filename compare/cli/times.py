"""Read the times that flags take."""

from __future__ import annotations

import typer

from compare.text import seconds_of


def read_seconds(written: str | float) -> float:
    """Return a time in seconds, which is written as a number or with a unit, such as ``5m``.

    Raises:
        BadParameter: it is neither; the parser adds the flag, or the file with its key.
    """
    try:
        return seconds_of(str(written))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None

"""Read the times that flags take."""

from __future__ import annotations

import re

import typer

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"(.+?) ?(s|m|min|h|)")


def read_seconds(written: str | float) -> float:
    """Read a time in seconds, or with a unit: 90s, 5m, 1h.

    Raises:
        BadParameter: it is neither; the parser adds the flag, or the file with its key.
    """
    match = _TIME.fullmatch(str(written))
    try:
        number, unit = match.groups() if match else ("", "")
        return float(number) * _UNITS[unit]
    except ValueError:
        raise typer.BadParameter(
            f"{str(written)[:80]!r} is no time. Use seconds, or a unit: 90s, 5m, 1h."
        ) from None

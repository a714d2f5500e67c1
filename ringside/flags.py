"""Turn arguments of a Python call into the flags of ``ringside run``, and into its command line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from compare.cli.options import TimedFlags
from compare.errors import UsageError
from compare.schema.environment import hide_exports

_PATHS = ("hostfile", "output")
_LISTS = ("backend", "env", "export")
_NUMBERS = ("num_proc", "threads", "batch_size", "accumulate", "seed")
_SWITCHES = ("compile", "verbose", "quiet")


def as_flags(arguments: Mapping[str, Any]) -> TimedFlags:
    """Return the flags for arguments of the same names, whose None stands for a flag that is not given.

    Raises:
        UsageError: there is no such flag, or its value is of a wrong type.
    """
    known = [field.name for field in fields(TimedFlags)]
    given = {name: value for name, value in arguments.items() if value is not None}
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise UsageError(
                f"ringside.compare has no argument {name!r}.",
                found=f"Did you mean {close[0]}?" if close else "",
                remedy=f"Use a flag of `ringside run` by its name: {', '.join(known)}.",
            )
    return TimedFlags(**{name: _as_value(name, value) for name, value in given.items()})


def _as_value(name: str, value: Any) -> Any:
    """Return a value in the type of its flag."""
    if name in _LISTS and isinstance(value, Iterable):
        return [str(each) for each in ([value] if isinstance(value, str | Path) else value)]
    kind = bool if name in _SWITCHES else int if name in _NUMBERS else list if name in _LISTS else None
    if kind and type(value) is not kind:
        what = {bool: "True or False", int: "a whole number", list: "a list of texts"}[kind]
        raise UsageError(f"ringside.compare: {name} cannot be {value!r}.", remedy=f"Give {what}.")
    return value if kind else Path(value) if name in _PATHS else str(value)


def require_number(name: str, value: object, kind: type[int | float]) -> None:
    """Require that an argument is None or a number, which is whole if ``kind`` is int.

    Raises:
        UsageError: it is something else.
    """
    allowed = (int,) if kind is int else (int, float)
    if value is not None and type(value) not in allowed:
        number = "a whole number" if kind is int else "a number of seconds"
        raise UsageError(f"ringside.compare: {name} cannot be {value!r}.", remedy=f"Give {number}.")


def as_words(arguments: Mapping[str, Any]) -> list[str]:
    """Return the command line that does the same, with secrets masked."""
    return hide_exports(["ringside", "run", *(word for item in arguments.items() for word in _words(*item))])


def _words(name: str, value: Any) -> Iterator[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        if value != (name == "control"):
            yield f"--{flag}" if value else f"--no-{flag}"
    elif value is not None:
        for each in [value] if isinstance(value, str | Path | int | float) else value:
            yield from (f"--{flag}", str(each))

"""Read the value of a flag that has options: ``value:key=value,key=value``, as ``60:warmup=10``.

Every flag whose value has options is read here, so that all of them are written and refused alike.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from compare.errors import UsageError


def read_options(
    flag: str, text: str, readers: Mapping[str, Callable[[str], Any]]
) -> tuple[str, dict[str, Any]]:
    """Return the value before the colon, and the given options by name, each as its reader returns it.

    ``readers`` has the options that the value may have. A reader raises a ``ValueError`` for a wrong value.

    Raises:
        UsageError: an option is unknown, is set twice or has a wrong value; the error names the ``flag``.
    """
    value, colon, settings = text.partition(":")
    read: dict[str, Any] = {}
    for setting in settings.split(",") if colon else ():
        name, equals, written = map(str.strip, setting.partition("="))
        name = name.replace("-", "_")
        if name not in readers:
            close = difflib.get_close_matches(name, readers, n=1)
            raise UsageError(
                f"{flag} {value} has no option {name!r} (in {text}).",
                found=f"Did you mean {close[0]}?" if close else "",
                remedy=f"Use one of: {', '.join(readers)}." if readers else "It takes no options.",
            )
        if name in read:
            raise UsageError(f"{flag} {text}: {name} is set twice.", remedy="Set each option once.")
        if not (equals and written):
            raise UsageError(
                f"{flag} {text}: {name} has no value.", remedy=f"Write one: {value}:{name}=VALUE."
            )
        try:
            read[name] = readers[name](written)
        except ValueError as error:
            raise UsageError(
                f"{flag} {text}: {name} cannot be {written!r}.",
                found=f"{error}".rstrip(".") + ".",
                remedy=f"Write another value for {name}, or leave it out.",
            ) from None
    return value.strip(), read

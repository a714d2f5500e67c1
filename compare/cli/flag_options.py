"""Read the values of flags: those with options, ``value:key=value,key=value``, and files to export to.

Every value with options, as ``60:warmup=10``, is read here, so that all are written and refused alike.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from compare.errors import UsageError

_NOT_READ: Mapping[object, str] = {int: "It is not a whole number.", float: "It is not a number."}
"""What is found if a reader of Python's own refuses a value, whose words are for programmers."""


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
            reason = _NOT_READ.get(readers[name], f"{error}")
            raise UsageError(
                f"{flag} {text}: {name} cannot be {written!r}.",
                found=reason.rstrip(".") + ".",
                remedy=f"Write another value for {name}, or leave it out.",
            ) from None
    return value.strip(), read


SUFFIXES = {".json": "json", ".csv": "csv", ".md": "markdown", ".html": "html"}
"""The formats of ``--export`` by the suffixes of files."""


class Export(NamedTuple):
    """A format, and the file that is written in it; the path ``-`` is standard output."""

    form: str
    path: Path


def read_exports(written: Sequence[str] | None, suffixes: Mapping[str, str] = SUFFIXES) -> list[Export]:
    """Return the files of ``--export``, each with the format of its suffix; ``-`` is JSON on standard output.

    ``-`` with a suffix, as in ``-.csv``, is standard output in another format.

    Raises:
        UsageError: a suffix is not one of ``suffixes``, or two exports go to one place.
    """
    exports = []
    for text in written or ():
        path = Path(f"{text}.json" if text == "-" else text)
        if path.suffix not in suffixes:
            raise UsageError(
                f"--export {text} has no suffix that names a format.",
                remedy=f"Use one of {', '.join(suffixes)}, or `-` for JSON on standard output.",
            )
        place = Path("-") if str(path) == f"-{path.suffix}" else path
        exports.append(Export(suffixes[path.suffix], place))
    paths = [export.path for export in exports]
    if twice := next((path for path in paths if paths.count(path) > 1), None):
        where = "standard output" if twice == Path("-") else str(twice)
        raise UsageError(
            f"Two formats cannot both go to {where}.", remedy="Name a different file for each of them."
        )
    return exports

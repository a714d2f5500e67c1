"""Find the environment variables that keep a library from loading."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from compare.schema.environment import library_settings

_OF_LOADERS = ("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "LD_BIND_NOW", "PYTHONHOME", "PYTHONPATH")
"""Variables that the dynamic loader and Python read before a library's own code runs."""
_SHOWN_CHARACTERS = 60


def find_suspects(loads: Callable[[Mapping[str, str]], bool], environ: Mapping[str, str]) -> list[str]:
    """Return the names of the variables without which a library loads; empty if removing all does not help.

    ``loads`` returns whether the library loads in an environment. A try takes a second or two, so each try
    leaves out half of the variables. If leaving out one is not enough, all that are set are returned.
    """
    suspects = [name for name in (*_OF_LOADERS, *library_settings(environ)) if environ.get(name)]
    suspects = list(dict.fromkeys(suspects))
    if not suspects or not loads(_without(suspects, environ)):
        return []
    fewer = suspects
    while len(fewer) > 1:
        half = fewer[: len(fewer) // 2]
        fewer = half if loads(_without(half, environ)) else fewer[len(half) :]
    # Leaving out one variable may not be enough.
    return fewer if len(suspects) == 1 or loads(_without(fewer, environ)) else suspects


def remedy(name: str, suspects: Iterable[str], environ: Mapping[str, str]) -> str:
    """Return the command that unsets the ``suspects`` of library ``name``, with the reason as a comment.

    Empty without suspects.
    """
    names = list(suspects)
    held = ", ".join(f"{variable}={_short(environ[variable])}" for variable in names)
    return f"unset {' '.join(names)}  # {name} loads without {held}" if names else ""


def _without(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    left_out = set(names)
    return {name: value for name, value in environ.items() if name not in left_out}


def _short(value: str) -> str:
    parts = value.split(os.pathsep)
    return value if len(value) <= _SHOWN_CHARACTERS else f"{parts[0][:_SHOWN_CHARACTERS]}…"

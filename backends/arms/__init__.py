"""Our own arms, one file each: what it is, its options, and what it claims.

A file here has the name of its arm, and the arm's entry as ``ARM``. It holds strings alone, so reading it
imports no library.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from backends.entry import Backend

_FIRST = ("none", "ddp", "manual", "horovod", "mpi")
"""The control and the default arms, in the order of every list; other arms follow by name."""


def _names() -> list[str]:
    found = {module.name for module in iter_modules(__path__)} - {"shared"}
    return [*_FIRST, *sorted(found.difference(_FIRST))]


ARMS: tuple[Backend, ...] = tuple(import_module(f"{__name__}.{name}").ARM for name in _names())

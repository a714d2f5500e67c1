"""Collect Ringside's own arms, each from one file that states its options and what it claims.

A file here has the name of its arm, and holds the arm's entry as ``ARM``. An entry names classes by strings,
so reading it imports no library.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from backends.entry import Backend

_FIRST = ("none", "ddp", "manual", "horovod", "mpi")
"""The control and the default arms, which come first in every list; the others follow in order of name."""
_OTHERS = sorted({module.name for module in iter_modules(__path__)} - {"shared", *_FIRST})
ARMS: tuple[Backend, ...] = tuple(import_module(f"{__name__}.{name}").ARM for name in (*_FIRST, *_OTHERS))

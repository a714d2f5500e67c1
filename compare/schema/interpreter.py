"""Define the other interpreter of ``compare gate``."""

from __future__ import annotations

import msgspec


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """A Python interpreter and its libraries, as the interpreter itself reported them."""

    executable: str
    """Path of the interpreter. Symbolic links are kept, because they choose the virtual environment."""
    prefix: str
    """Its ``sys.prefix``, which every rank must attest."""
    python: str
    """Version of Python."""
    torch: str
    """Version of torch."""
    ringside: str
    """Version of the worker's code."""
    sources: str
    """Folder of the worker's code, which every rank must attest."""
    own_sources: bool
    """Whether ``sources`` is the package installed in that environment, not the one that runs the command."""

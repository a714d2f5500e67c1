"""Define the other interpreter of ``compare gate``."""

from __future__ import annotations

import msgspec


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """An interpreter with its libraries, as it described itself."""

    executable: str
    """Its path; links are kept, because they choose the environment."""
    prefix: str
    """Its ``sys.prefix``, which every rank must attest."""
    python: str
    """Its version."""
    torch: str
    """Version of its torch."""
    ringside: str
    """Version of the worker's code."""
    sources: str
    """Folder of the worker's code, which every rank must attest."""
    own_sources: bool
    """Whether that is the environment's own package, not this one's."""

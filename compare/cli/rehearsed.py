"""Hold the hosts of a rehearsal for the command inside it."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING

from compare.errors import UsageError

if TYPE_CHECKING:
    from compare.launch.engines import Allocation

REHEARSED: ContextVar[Allocation | None] = ContextVar("REHEARSED", default=None)
"""The hosts that ``compare rehearse`` made for the command inside it."""


def read_rehearsed(own: Mapping[str, object]) -> Allocation | None:
    """Return the hosts of a rehearsal; None outside one.

    ``own`` has the flags that choose other hosts, or how to reach them, with their values.

    Raises:
        UsageError: one of these flags is given in a rehearsal.
    """
    rehearsed = REHEARSED.get()
    given = next((flag for flag, value in own.items() if value), "")
    if rehearsed and given:
        raise UsageError(
            "A rehearsal makes its own hosts.",
            found=f"{given} chooses others.",
            remedy="Leave it out, and say how many hosts with `compare rehearse --hosts`.",
        )
    return rehearsed

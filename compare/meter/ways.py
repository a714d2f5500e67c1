"""Define what the meter asks of each way of synchronising gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from compare.meter.ranks import Ranks
from compare.schema.metered import Synchronised


class Way(Protocol):
    """One thing that synchronises gradients: a wrapper, or a function that the script calls."""

    @property
    def models(self) -> list[Any]:
        """Return the modules whose forward passes the script calls, and whose state is put back."""
        ...

    @property
    def obstacle(self) -> str:
        """Return why it cannot be switched; empty if it can."""
        ...

    def join(self, meeting: int) -> Ranks:
        """Return the ranks that synchronise with each other; sessions of a process have different numbers."""
        ...

    def describe(self) -> Synchronised:
        """Return what is synchronised, as the library reports it."""
        ...

    def switch(self, *, on: bool) -> None:
        """Synchronise from the next step on, or do not; call it between two steps only."""
        ...

    def measuring(self) -> AbstractContextManager[None]:
        """Return a context that is open while blocks are measured."""
        ...

    def marking_waits(self, mark: Callable[[str], None]) -> AbstractContextManager[None]:
        """Return a context in which ``mark`` is called at the ends of waits that no other hook sees."""
        ...

    def start_messages(self) -> Callable[[], None]:
        """Start the all-reduces of a step, of zeros; return a function that waits for them."""
        ...

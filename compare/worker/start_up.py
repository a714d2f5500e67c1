"""Time the start-up of a rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, time

from compare.schema.results import Moments


class StartUp:
    """The moments of a rank until its first step."""

    def __init__(self, launched_at: float) -> None:
        # Only the start compares the clocks of two processes: the clock may be set at any time.
        self._origin = monotonic() - (time() - launched_at)
        self._seconds: dict[str, float] = {}
        self.mark("started")

    def mark(self, moment: str) -> None:
        """Record a moment, named as in ``Moments``."""
        self._seconds[moment] = monotonic() - self._origin

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Subtract the time of this block from all later moments."""
        begun = monotonic()
        yield
        self._origin += monotonic() - begun

    def read(self) -> Moments:
        """Return all moments."""
        return Moments(**self._seconds)

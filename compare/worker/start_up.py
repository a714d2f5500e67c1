"""Time the start-up of a rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, time

from compare.schema.results import Moments


class StartUp:
    """The seconds from the start of a launch to each stage of a rank, up to its first step."""

    def __init__(self, launched_at: float) -> None:
        # The clocks of two processes are compared only here, because a clock may be set at any time.
        self._origin = monotonic() - (time() - launched_at)
        self._seconds: dict[str, float] = {}
        self.mark("started")

    def mark(self, moment: str) -> None:
        """Record the time of a moment, which is the name of a field of ``Moments``."""
        self._seconds[moment] = monotonic() - self._origin

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Subtract the time of this block from all later moments."""
        begun = monotonic()
        yield
        self._origin += monotonic() - begun

    def read(self) -> Moments:
        """Return all moments; each must have been recorded."""
        return Moments(**self._seconds)

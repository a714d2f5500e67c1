"""Tell the watchdog how a proof goes on."""

from __future__ import annotations

from time import monotonic

from backends.base import Group
from compare.worker.watchdog import WAIT_SECONDS, Watchdog


class Pace:
    """The pace of a proof without a watchdog, in a process alone."""

    def note(self, pass_seconds: float) -> None:
        """Note that a pass begins; the last one took so long, or is 0."""

    def meet(self) -> None:
        """Return when all ranks have called it."""


class WatchedPace(Pace):
    """The pace of one rank, whose watchdog ends it when it hangs.

    A pass may take the stall longer than the one before it. ``first_seconds`` is the limit of a first pass,
    where that is longer than the stall.
    """

    def __init__(self, watchdog: Watchdog, group: Group, first_seconds: float) -> None:
        self._watchdog, self._group, self._first_seconds = watchdog, group, first_seconds
        self._met_at = monotonic()

    def note(self, pass_seconds: float) -> None:
        """Restart the watchdog for the pass that begins."""
        limit = self._watchdog.stall_seconds + pass_seconds if pass_seconds else self._first_seconds
        self._watchdog.note("parity", limit_seconds=limit)

    def meet(self) -> None:
        """Return when all ranks have called it.

        Rank 0 trains the reference on all ranks' samples, and its own watchdog follows it. So the others may
        wait as long as it takes. Rank 0 waits as long again as it took itself: if the step is the user's own,
        all ranks train a reference.
        """
        if self._group.world_size == 1:
            return
        own_seconds = monotonic() - self._met_at
        limit = WAIT_SECONDS if self._group.rank else self._watchdog.stall_seconds + own_seconds
        self._watchdog.note("parity", limit_seconds=max(limit, self._first_seconds))
        self._group.barrier()
        self._met_at = monotonic()

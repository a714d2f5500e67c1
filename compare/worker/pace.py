"""Tell the watchdog how a proof goes on."""

from __future__ import annotations

from time import monotonic

from backends.base import Group
from compare.worker.watchdog import WAIT_SECONDS, Watchdog


class Pace:
    """The pace of a proof without a watchdog, in a process alone."""

    def step(self, number: int) -> None:
        """Note that a step begins, from 0; the first one may compile."""

    def note(self, passes: int = 1) -> None:
        """Note that passes of a shard begin, or with 0 something else."""

    def meet(self, passes: int = 1) -> None:
        """Return when all ranks have called it.

        The others may have so many passes left.
        """


class WatchedPace(Pace):
    """The pace of one rank, whose watchdog ends it when it hangs.

    A pass may take the stall longer than the one before it. ``first_seconds`` is the limit of what a first
    step does, where that is longer. ``pass_seconds`` is the time of a pass, if it is known already.
    """

    def __init__(
        self, watchdog: Watchdog, group: Group, *, first_seconds: float = 0.0, pass_seconds: float = 0.0
    ) -> None:
        self._watchdog, self._group = watchdog, group
        self._first_seconds, self._pass_seconds = first_seconds, pass_seconds
        self._least_seconds = 0.0
        self._passes, self._begun = 0, 0.0

    def step(self, number: int) -> None:
        """Note that a step begins, from 0; the first one may compile."""
        self._least_seconds = 0.0 if number else self._first_seconds

    def note(self, passes: int = 1) -> None:
        """Restart the watchdog for the passes that begin."""
        self._end_passes()
        self._expect(self._limit(passes))
        self._passes, self._begun = passes, monotonic()

    def meet(self, passes: int = 1) -> None:
        """Return when all ranks have called it.

        Rank 0 trains the reference on all ranks' samples, and its own watchdog follows it. So the others may
        wait as long as it takes. It waits for them no longer than for their passes.
        """
        self._end_passes()
        if self._group.world_size == 1:
            return
        self._expect(WAIT_SECONDS if self._group.rank else self._limit(passes))
        self._group.barrier()

    def _end_passes(self) -> None:
        """Learn how long a pass takes; waiting for others is none."""
        if self._passes:
            self._pass_seconds = (monotonic() - self._begun) / self._passes
        self._passes = 0

    def _limit(self, passes: int) -> float:
        passes, stall = max(passes, 1), self._watchdog.stall_seconds
        return stall + passes * self._pass_seconds if self._pass_seconds else stall * passes

    def _expect(self, seconds: float) -> None:
        self._watchdog.note("parity", limit_seconds=max(seconds, self._least_seconds))

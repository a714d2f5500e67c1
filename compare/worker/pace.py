"""Report the progress of a proof to the watchdog, with a time limit for what comes next."""

from __future__ import annotations

from time import monotonic

from backends.base import Group
from compare.worker.watchdog import WAIT_SECONDS, Watchdog


class Pace:
    """The progress of a proof in a single process without a watchdog: all methods do nothing."""

    def step(self, number: int) -> None:
        """Note that step ``number`` begins; the first one, 0, may compile."""

    def note(self, passes: int = 1) -> None:
        """Note that so many passes of a shard begin; 0 is for other work."""

    def meet(self, passes: int = 1) -> None:
        """Wait until all ranks have called this method.

        ``passes`` is how many passes other ranks may still have to take.
        """


class WatchedPace(Pace):
    """The progress of one rank, whose watchdog ends the rank when it hangs.

    Passes may take as long as so many earlier ones, and the stall time in addition. While the time of a pass
    is unknown (``pass_seconds`` is 0), each pass may take the stall time. In the first step, which may
    compile, the limit is at least ``first_seconds``.
    """

    def __init__(
        self, watchdog: Watchdog, group: Group, *, first_seconds: float = 0.0, pass_seconds: float = 0.0
    ) -> None:
        self._watchdog, self._group = watchdog, group
        self._first_seconds, self._pass_seconds = first_seconds, pass_seconds
        self._least_seconds = 0.0
        self._passes, self._begun = 0, 0.0

    def step(self, number: int) -> None:
        """Note that step ``number`` begins; the first one, 0, may compile."""
        self._least_seconds = 0.0 if number else self._first_seconds

    def note(self, passes: int = 1) -> None:
        """Restart the watchdog for the passes that begin."""
        self._end_passes()
        self._expect(self._limit(passes))
        self._passes, self._begun = passes, monotonic()

    def meet(self, passes: int = 1) -> None:
        """Wait until all ranks have called this method.

        Rank 0 trains the reference on the samples of all ranks, under its own watchdog. So the other ranks
        wait for rank 0 without a limit, but rank 0 waits for them only as long as ``passes`` may take.
        """
        self._end_passes()
        if self._group.world_size == 1:
            return
        self._expect(WAIT_SECONDS if self._group.rank else self._limit(passes))
        self._group.barrier()

    def _end_passes(self) -> None:
        """Note the mean time of the passes that have ended, without the wait for other ranks."""
        if self._passes:
            self._pass_seconds = (monotonic() - self._begun) / self._passes
        self._passes = 0

    def _limit(self, passes: int) -> float:
        passes, stall = max(passes, 1), self._watchdog.stall_seconds
        return stall + passes * self._pass_seconds if self._pass_seconds else stall * passes

    def _expect(self, seconds: float) -> None:
        self._watchdog.note("parity", limit_seconds=max(seconds, self._least_seconds))

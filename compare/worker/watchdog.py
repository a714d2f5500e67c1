"""End a rank that makes no progress, and write the stacks of a rank that receives SIGTERM.

Progress records restart a timer. The timer is in C, so a stuck interpreter does not delay it. When it
expires, it prints the stacks of all threads to the log and ends the process.

On SIGTERM, a handler writes these stacks into a file, and then the process ends. The handler is in C as well,
because the main thread may wait in a collective for ever.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from contextlib import suppress
from time import monotonic, time
from typing import BinaryIO

from backends.base import Group
from compare.schema.job import Progress, Stage, append_progress, open_progress
from compare.schema.launch_files import LaunchFiles
from compare.workload import WorkloadError

SLACK = 3.0
"""Factor by which work may exceed its expected time before it counts as stalled."""
WAIT_SECONDS = 1e9
"""The limit for a rank that waits for its turn or for rank 0; it is never reached."""
_SHORT_STEP_SECONDS = 1e-3
"""Least time that is assumed for a step, even if it was never timed."""
_RESTART_SECONDS = 0.2
"""Least time between two starts of the timer with the same limit.

A start makes a thread, which takes as long as a short step.
"""


class Watchdog:
    """The watchdog of one rank, which ends the rank if the next progress record comes too late.

    ``stall_seconds`` is the stall time: the usual limit between two records.
    """

    def __init__(self, files: LaunchFiles, rank: int, stall_seconds: float) -> None:
        self._files = files
        self._rank = rank
        self.stall_seconds = stall_seconds
        self._notes: BinaryIO
        self._timer: tuple[Stage, float] | None = None
        self._started_at = 0.0
        self._open: dict[int, os.stat_result] = {}
        """The files that this rank has open and a workload must not close, by their descriptors."""

    def start(self, *, limit_seconds: float) -> None:
        """Start the timer, and handle SIGTERM; to be called from the main thread.

        The next record must come within the stall time, or within ``limit_seconds`` if that is longer.
        """
        faulthandler.enable()  # a crash in a library leaves its stack in the log
        stacks = os.open(self._files.stacks(self._rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        # Chained to the default action, which ends the process.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        faulthandler.register(signal.SIGTERM, file=stacks, chain=True)
        self._notes = open_progress(self._files, self._rank)
        self._open = {own: os.fstat(own) for own in (stacks, self._notes.fileno())}
        self.note("start", limit_seconds=limit_seconds)

    def steps_at_once(self, step_seconds: float) -> int:
        """Return how many steps of ``step_seconds`` may be taken between two records, at least one.

        With so many steps, ``SLACK`` times their expected time is within the stall time, unless a single step
        exceeds it.
        """
        return max(1, int(self.stall_seconds / (SLACK * max(step_seconds, _SHORT_STEP_SECONDS))))

    def note(
        self, stage: Stage, step: int = 0, *, expected_seconds: float = 0.0, limit_seconds: float = 0.0
    ) -> None:
        """Record the stage and the number of finished steps, and restart the timer.

        The limit is the stall time, ``limit_seconds`` or ``SLACK`` times the expected time: the longest of
        them. A call takes some 0.1 ms, so timed code makes one only every few seconds.
        """
        limit = max(self.stall_seconds, SLACK * expected_seconds, limit_seconds)
        now = monotonic()
        if (stage, limit) != self._timer or now - self._started_at > _RESTART_SECONDS:
            faulthandler.dump_traceback_later(limit, exit=True)
            self._timer, self._started_at = (stage, limit), now
        self._record(stage, step, limit)

    def wait_for_turn(self, step: int) -> None:
        """Stop the timer, and record that the rank waits after so many steps, while other arms train."""
        faulthandler.cancel_dump_traceback_later()
        self._timer = None
        self._record("turn", step, WAIT_SECONDS)

    def _record(self, stage: Stage, step: int, limit_seconds: float) -> None:
        """Append a progress record, after checking that the rank's files are still open.

        If the workload had closed one, another file or a connection could get its descriptor, and with that
        the rank's records.

        Raises:
            WorkloadError: a descriptor is closed, or belongs to another file.
        """
        for descriptor, file in self._open.items():
            with suppress(OSError):  # it is closed
                if os.path.samestat(os.fstat(descriptor), file):
                    continue
            self._open = {}
            raise WorkloadError(
                f"file descriptor {descriptor} of the rank was closed. "
                "Let the workload close only what it has opened itself."
            )
        record = Progress(stage=stage, step=step, at=time(), limit_seconds=limit_seconds)
        append_progress(self._notes, record)


class PassTimer:
    """A timer of a rank's passes in a proof or an end step, which sets the watchdog's limits.

    The limit is the stall time plus the time that the passes would take at the pace last measured. Until a
    pass has been timed (``pass_seconds`` is 0), the limit is the stall time for each pass. In the first step,
    which may compile the model, the limit is never below ``first_seconds``.
    """

    def __init__(
        self, watchdog: Watchdog, group: Group, *, first_seconds: float = 0.0, pass_seconds: float = 0.0
    ) -> None:
        self._watchdog, self._group = watchdog, group
        self._first_seconds, self._pass_seconds = first_seconds, pass_seconds
        self._least_seconds = 0.0
        self._passes, self._begun = 0, 0.0

    def begin_step(self, number: int) -> None:
        """Note that the step of this number begins, from 0; the first one may compile."""
        self._least_seconds = 0.0 if number else self._first_seconds

    def begin_passes(self, passes: int = 1) -> None:
        """Restart the watchdog for so many passes of a shard that begin, or for other work if it is 0."""
        self._end_passes()
        self._watchdog.note("parity", limit_seconds=self._limit(passes))
        self._passes, self._begun = passes, monotonic()

    def wait_for_ranks(self) -> None:
        """Wait until all ranks have called this method.

        Rank 0 trains the reference on the samples of all ranks, under its own watchdog. So the other ranks
        wait for rank 0 without a limit, but rank 0 waits for them only as long as a pass for each rank takes.
        """
        self._end_passes()
        ranks = self._group.world_size
        if ranks > 1:
            limit = WAIT_SECONDS if self._group.rank else self._limit(ranks)
            self._watchdog.note("parity", limit_seconds=limit)
            self._group.barrier()

    def _end_passes(self) -> None:
        """Measure the mean time of the passes that have ended, without the wait for other ranks."""
        if self._passes:
            self._pass_seconds = (monotonic() - self._begun) / self._passes
        self._passes = 0

    def _limit(self, passes: int) -> float:
        """Return the watchdog's limit for so many passes, in seconds."""
        passes, stall = max(passes, 1), self._watchdog.stall_seconds
        seconds = stall + passes * self._pass_seconds if self._pass_seconds else stall * passes
        return max(seconds, self._least_seconds)

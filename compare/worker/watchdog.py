"""End a rank that makes no progress, and write the stacks of a rank that receives SIGTERM.

Every progress record restarts a timer. The timer is in C, so a stuck interpreter does not hold it up. When
it expires, it prints every stack to the log and ends the process.

On SIGTERM, a handler writes every stack into a file, and then the process ends. The handler is in C as well,
because the main thread may wait in a collective for ever.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from contextlib import suppress
from time import monotonic, time
from typing import TYPE_CHECKING, BinaryIO

from compare.schema.job import Progress, Stage, note_progress, open_progress
from compare.schema.launch_files import LaunchFiles
from compare.workload import WorkloadError

if TYPE_CHECKING:
    from backends.base import Group

SLACK = 3.0
"""Factor by which work may exceed its expected time."""
WAIT_SECONDS = 1e9
"""A limit that is never reached, for a rank that waits for its turn or for rank 0."""
_SHORT_STEP_SECONDS = 1e-3
"""Least time that is assumed for a step, also for a step that was never timed."""
_RESTART_SECONDS = 0.2
"""Least time between two starts of the same timer.

A start makes a thread, which takes as long as a short step.
"""


class Watchdog:
    """The watchdog of one rank, which works before any library is loaded."""

    def __init__(self, files: LaunchFiles, rank: int, stall_seconds: float) -> None:
        self._files = files
        self._rank = rank
        self.stall_seconds = stall_seconds
        self._notes: BinaryIO
        self._timer: tuple[Stage, float] | None = None
        self._started_at = 0.0
        self._open: dict[int, os.stat_result] = {}
        """The rank's own descriptors, which a workload must not close, and the file of each."""

    def start(self, *, limit_seconds: float) -> None:
        """Start the timer and handle SIGTERM; call it from the main thread.

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
        """Return how many steps may be taken between two records, which is at least one.

        With so many steps, a hang is noticed within the stall time. If the stall time is too short for one
        step, the limit is ``SLACK`` times the step's own time.
        """
        return max(1, int(self.stall_seconds / (SLACK * max(step_seconds, _SHORT_STEP_SECONDS))))

    def note(
        self, stage: Stage, step: int = 0, *, expected_seconds: float = 0.0, limit_seconds: float = 0.0
    ) -> None:
        """Record what the rank does next, and restart the timer.

        A call takes some 0.1 ms, so timed code makes one only every few seconds. The limit is ``SLACK`` times
        the expected time, ``limit_seconds`` or the stall time: the longest of them.
        """
        limit = max(self.stall_seconds, SLACK * expected_seconds, limit_seconds)
        now = monotonic()
        if (stage, limit) != self._timer or now - self._started_at > _RESTART_SECONDS:
            faulthandler.dump_traceback_later(limit, exit=True)
            self._timer, self._started_at = (stage, limit), now
        self._record(stage, step, limit)

    def wait_for_turn(self, step: int) -> None:
        """Stop the timer, and record that the rank waits while other arms train."""
        faulthandler.cancel_dump_traceback_later()
        self._timer = None
        self._record("turn", step, WAIT_SECONDS)

    def _record(self, stage: Stage, step: int, limit_seconds: float) -> None:
        """Append a record, after checking that nothing has closed this rank's own descriptors.

        Otherwise another file or a connection could get their numbers, and receive the rank's records.

        Raises:
            WorkloadError: a descriptor is closed, or belongs to another file.
        """
        for descriptor, file in self._open.items():
            with suppress(OSError):  # it is closed
                if os.path.samestat(os.fstat(descriptor), file):
                    continue
            self._open = {}
            raise WorkloadError(
                f"descriptor {descriptor} of the rank was closed. "
                "Let the workload close only what it has opened itself."
            )
        record = Progress(stage=stage, step=step, at=time(), limit_seconds=limit_seconds)
        note_progress(self._notes, record)


class Pace:
    """Times a rank's passes during a proof, and tells its watchdog how long the next work may take.

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

    def step(self, number: int) -> None:
        """Note that step ``number`` begins; the first one, 0, may compile."""
        self._least_seconds = 0.0 if number else self._first_seconds

    def note(self, passes: int = 1) -> None:
        """Restart the watchdog for so many passes of a shard, which begin; 0 is for other work."""
        self._end_passes()
        self._watchdog.note("parity", limit_seconds=self._limit(passes))
        self._passes, self._begun = passes, monotonic()

    def meet(self) -> None:
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
        """Note the mean time of the passes that have ended, without the wait for other ranks."""
        if self._passes:
            self._pass_seconds = (monotonic() - self._begun) / self._passes
        self._passes = 0

    def _limit(self, passes: int) -> float:
        passes, stall = max(passes, 1), self._watchdog.stall_seconds
        seconds = stall + passes * self._pass_seconds if self._pass_seconds else stall * passes
        return max(seconds, self._least_seconds)

"""A rank's guard: behind a dead link or a dead parent nobody can end a rank but itself.

Three things end it. A **watchdog** in C, armed anew at every sign of progress, prints every stack and
ends the process when none came in time, even where the interpreter is stuck. A **lease**, which the
parent renews while it lives, runs out. A **SIGTERM** from the launcher leaves every stack in a file, even
where the interpreter is stuck, and is answered by a thread, because the main one may wait in a collective
for ever; the rank then says that it was ended. Whoever looks for the cause need not suspect it.
"""

from __future__ import annotations

import faulthandler
import os
import select
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from compare.schema.environment import SCRATCH
from compare.schema.files import write_json
from compare.schema.job import Progress, RankFailure, Stage, note_progress, open_progress
from compare.schema.launch_files import LEASE_SECONDS, LaunchFiles

if TYPE_CHECKING:
    from pathlib import Path

    from backends.base import Placement


SLACK = 3.0
"""What is under way may take so many times as long as it should, where that is more than the stall."""
_SHORT_STEP_SECONDS = 1e-3
"""Whoever takes less, or has not been timed, takes this."""
_LOOK_SECONDS = 1.0
_ARMED_SECONDS = 0.2
"""Arming a watchdog makes a thread, which costs as much as a short step: short blocks share one."""


class Guard:
    """Watches over one rank, from before its libraries are loaded until it ends."""

    def __init__(self, files: LaunchFiles, placement: Placement, stall_seconds: float) -> None:
        self._files = files
        self._placement = placement
        self._stall_seconds = stall_seconds
        self._notes: BinaryIO | None = None
        self._armed: tuple[Stage, float] | None = None
        self._armed_at = 0.0

    def start(self, *, patience_seconds: float) -> None:
        """Begin to watch; to be called from the main thread.

        Args:
            patience_seconds: how long it may take until the next note, where that is longer than the stall.
        """
        faulthandler.enable()  # a crash in a library leaves its stack in the log
        readable, writable = os.pipe()
        os.set_blocking(writable, False)
        signal.set_wakeup_fd(writable)
        signal.signal(signal.SIGTERM, lambda *_: None)  # the byte in the pipe is the message
        # Before that: a launcher may kill it a second later, and it may be what the others waited for. In a
        # file of its own nothing else can be taken for it, and it mixes with nothing.
        stacks = os.open(self._stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        faulthandler.register(signal.SIGTERM, file=stacks, chain=True)
        threading.Thread(target=self._watch, args=(readable,), name="guard", daemon=True).start()
        self._await("start", 0, patience_seconds)

    def steps_at_once(self, step_seconds: float) -> int:
        """Say how many steps may go by between two notes, so that whoever hangs is ended by the stall.

        One at least: then the stall is too short for a step, which is given ``SLACK`` times what it takes.
        """
        return max(1, int(self._stall_seconds / (SLACK * max(step_seconds, _SHORT_STEP_SECONDS))))

    def note(self, stage: Stage, step: int = 0, *, expected_seconds: float = 0.0) -> None:
        """Say what the rank is about to do, and arm the watchdog anew.

        It takes some 0.1 ms: in what is timed it is called only where that goes on for seconds.

        Args:
            stage: what comes next.
            step: training steps done.
            expected_seconds: how long that should take, where it is known. ``SLACK`` times as long is
                waited for, or the stall where that is longer.
        """
        self._await(stage, step, SLACK * expected_seconds)

    def _await(self, stage: Stage, step: int, seconds: float) -> None:
        patience = max(self._stall_seconds, seconds)
        now = time.monotonic()
        if (stage, patience) != self._armed or now - self._armed_at > _ARMED_SECONDS:
            faulthandler.dump_traceback_later(patience, exit=True)
            self._armed, self._armed_at = (stage, patience), now
        progress = Progress(
            stage=stage, step=step, at=time.time(), patience_seconds=patience, pid=os.getpid()
        )
        if self._notes is None:
            self._notes = open_progress(self._files, self._placement.rank)
        note_progress(self._notes, progress)

    def _watch(self, readable: int) -> None:
        lease = Lease(self._files)
        while True:
            ready, _, _ = select.select([readable], [], [], _LOOK_SECONDS)
            if ready and signal.SIGTERM in os.read(readable, 64):
                with suppress(OSError):  # the folder may have vanished
                    sys.stderr.write(self._stacks.read_text())
                self._end("ended by its launcher")
            if lease.has_run_out():
                _remove_scratch()
                self._end(f"left alone: its parent gave no sign of life for {LEASE_SECONDS:g} s")

    @property
    def _stacks(self) -> Path:
        return self._files.stacks(self._placement.rank)

    def _end(self, why: str) -> NoReturn:
        sys.stderr.write(f"This rank was {why}.\n")
        placement = self._placement
        failure = RankFailure(
            rank=placement.rank, host=placement.host, at=time.time(), kind="ended", message=why
        )
        try:
            told = self._files.result(placement.rank), self._files.failure(placement.rank)
            if not any(file.exists() for file in told):
                write_json(self._files.failure(placement.rank), failure)
        finally:
            os._exit(128 + signal.SIGTERM)


class Lease:
    """The parent's sign of life: a file that it touches. Only change counts, so clocks need not agree."""

    def __init__(self, files: LaunchFiles) -> None:
        self._file = files.lease
        self._seen = 0
        self._changed_at = time.monotonic()

    def has_run_out(self) -> bool:
        """Whether the parent has been silent for too long."""
        try:
            seen = self._file.stat().st_mtime_ns
        except OSError:  # the folder may have vanished, and the parent with it
            seen = self._seen
        if seen != self._seen:
            self._seen, self._changed_at = seen, time.monotonic()
        return time.monotonic() - self._changed_at > LEASE_SECONDS


def _remove_scratch() -> None:
    """Remove what the parent would have removed, were it alive."""
    for folder in filter(None, os.environ.get(SCRATCH, "").split(os.pathsep)):
        shutil.rmtree(folder, ignore_errors=True)

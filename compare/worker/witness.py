"""Record how a rank exits, by a small parent process: its witness.

The launcher's child is the witness, and the witness's child is the rank. Launchers ignore a rank that exits
with status 0, and their own exit code shows neither when a rank exited nor which rank was first.

The witness forks before any library is loaded, and imports only the standard library, so it stays small. It
waits for signals in its only thread.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from compare.schema.launch_files import LEASE_SECONDS, LaunchFiles

KILL_SECONDS = 2.0
"""Maximum time for a rank to exit after a signal.

The agent and horovodrun wait longer, so the witness still exists to record the exit. Open MPI waits only one
second, so a rank that needs longer leaves its stacks, but no record of its exit.
"""

_CHECK_SECONDS = 1.0
"""Time between two checks of the lease."""
_SAME_MOMENT_SECONDS = 0.03
"""Maximum time between SIGTERM to a rank and SIGTERM to its witness.

A launcher needs longer to notice another rank's failure and to end this one.
"""
_FORWARD_SECONDS = 0.3
"""Time from a signal to the witness until the witness forwards it to the rank.

torchrun signals the whole process group, so the rank may be writing its stacks already. A second signal would
cut them short.
"""
_RECORD_BYTES = 512
"""Room for an exit record, which is reserved at the start, while the disk has room."""
_ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_FORWARDED = frozenset({signal.SIGUSR1, signal.SIGUSR2})
_AWAITED = _ENDING | _FORWARDED | {signal.SIGCHLD}
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4


def fork_witness(files: LaunchFiles, rank: int) -> None:
    """Fork, and return in the child, which is the rank.

    The parent is its witness and never returns. Call this from the only thread, before any library is loaded.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where a launcher ignores it, no child can be awaited
    # Blocked before the fork: a signal to the witness waits until the witness asks for it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    witness = os.getpid()
    rank_pid = os.fork()
    if rank_pid:
        _Witness(files, rank, rank_pid).run()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != witness:  # the witness died before the prctl
        os._exit(128 + signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class _Witness:
    def __init__(self, files: LaunchFiles, rank: int, rank_pid: int) -> None:
        self._files = files
        self._rank = rank
        self._pid = rank_pid
        self._lease_ns, self._renewed_at = 0, time.monotonic()
        self._ended_by = ""
        self._stopped_until = -math.inf
        self._kill_at = math.inf
        self._forward_at: dict[signal.Signals, float] = {}
        """When each signal is forwarded that ends a rank; infinity once it has been."""

    def run(self) -> NoReturn:
        """Wait until the rank exits, record how it exited, and exit in the same way."""
        try:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            _write(self._files.witness(self._rank), str(os.getpid()))
            _reserve(self._files.exit(self._rank))
            status = self._wait()
            self._record(status)
            _exit_alike(status)
        finally:  # an error here must not return into the rank's program
            os._exit(1)

    def _wait(self) -> int:
        """Forward signals and check the lease; return the rank's wait status."""
        while True:
            awaited = min([self._kill_at, *self._forward_at.values()]) - time.monotonic()
            received = signal.sigtimedwait(_AWAITED, max(0.0, min(_CHECK_SECONDS, awaited)))
            status = self._status()
            number = signal.Signals(received.si_signo) if received else None
            if status is not None:
                self._ended_by = self._ended_by or ("signal" if number in _ENDING else "")
                return status
            if number in _ENDING:
                self._end("signal", number)
            elif number in _FORWARDED:
                self._send(number)
            if not self._ended_by and self._lease_has_expired():
                self._end("lease", signal.SIGTERM)
            self._forward()
            if time.monotonic() >= self._kill_at:
                os.kill(self._pid, signal.SIGKILL)
                self._kill_at = math.inf  # a rank in uninterruptible sleep exits when it can

    def _lease_has_expired(self) -> bool:
        """Return whether the parent has not touched the lease for ``LEASE_SECONDS``.

        Only a change of the file's time counts, so the clocks of two hosts may differ.
        """
        # The folder may be gone, and the parent with it.
        with suppress(OSError):
            modified_ns = self._files.lease.stat().st_mtime_ns
            if modified_ns != self._lease_ns:
                self._lease_ns, self._renewed_at = modified_ns, time.monotonic()
        return time.monotonic() - self._renewed_at > LEASE_SECONDS

    def _status(self) -> int | None:
        """Return the wait status of a rank that has exited, else None.

        Also note when the rank is stopped or continued.
        """
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                return None
            if not (os.WIFSTOPPED(status) or os.WIFCONTINUED(status)):
                return status
            self._stopped_until = math.inf if os.WIFSTOPPED(status) else time.monotonic()

    def _end(self, ended_by: str, number: signal.Signals) -> None:
        """Plan to forward a signal once, after a delay, and to kill the rank if it does not exit."""
        now = time.monotonic()
        if not self._ended_by:
            self._ended_by, self._kill_at = ended_by, now + KILL_SECONDS
        self._forward_at.setdefault(number, now + _FORWARD_SECONDS)
        self._send(signal.SIGCONT)  # a stopped process receives nothing else

    def _forward(self) -> None:
        """Send the signals whose time has come."""
        for number, at in self._forward_at.items():
            if time.monotonic() >= at:
                self._forward_at[number] = math.inf
                self._send(number)
                self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def _record(self, status: int) -> None:
        at = time.time()
        code = os.waitstatus_to_exitcode(status)
        # A launcher sends SIGTERM to both, and the rank may be first to receive it.
        if (
            code == -signal.SIGTERM
            and not self._ended_by
            and signal.sigtimedwait(_ENDING, _SAME_MOMENT_SECONDS)
        ):
            self._ended_by = "signal"
        record = {
            "pid": self._pid,
            "time": at,
            "status": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "ended_by": self._ended_by,
            # A launcher wakes a stopped rank to end it.
            "stopped": time.monotonic() - self._stopped_until < KILL_SECONDS + _SAME_MOMENT_SECONDS,
        }
        _write(self._files.exit(self._rank), json.dumps(record))


def _write(file: Path, text: str) -> None:
    """Write a file whole or not at all.

    Errors are ignored, because the parent reports a full disk or a missing folder by itself.
    """
    temporary = _temporary(file)
    with suppress(OSError):
        # The reserved room is overwritten, not truncated.
        with temporary.open("r+" if temporary.exists() else "w") as opened:
            opened.write(text)
        temporary.replace(file)


def _reserve(file: Path) -> None:
    """Reserve room for a JSON record by writing spaces, which may follow the record."""
    with suppress(OSError):
        _temporary(file).write_text(" " * _RECORD_BYTES)


def _temporary(file: Path) -> Path:
    return file.with_name(f".{file.name}")


def _exit_alike(status: int) -> NoReturn:
    """Exit with the rank's status or signal, without a core file."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    _prctl(_PR_SET_DUMPABLE, 0)
    with suppress(OSError):  # the action of SIGKILL cannot be set, and need not be
        signal.signal(-code, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os.kill(os.getpid(), -code)
    os._exit(128 - code)  # the first process of a container survives its own signals


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0)

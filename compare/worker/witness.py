"""Record how a rank exits, in a small parent process that is called its witness.

The launcher starts the witness, which forks the rank. Launchers ignore a rank that exits with status 0, and
their own exit code shows neither when a rank exited nor which rank was first.

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
from compare.system.limits import address_limit_bytes, memory_limit_bytes, oom_kills

KILL_SECONDS = 2.0
"""Time that a rank has to exit after a signal, before it is killed.

The agent and horovodrun wait longer before they kill the witness, so it can record the exit. Open MPI waits
only one second, so a rank that needs longer leaves its stacks, but no record of its exit.
"""

_CHECK_SECONDS = 1.0
"""Time between two checks of the lease, a file that the launching process touches while it lives."""
_SAME_MOMENT_SECONDS = 0.03
"""Maximum time between SIGTERM to a rank and SIGTERM to its witness, if a launcher sends both at once.

A launcher needs longer to notice another rank's failure and to end this one.
"""
_FORWARD_SECONDS = 0.3
"""Time from a signal to the witness until the witness forwards it to the rank.

torchrun signals the whole process group, so the rank may be writing its stacks already, and a second signal
would cut them short.
"""
_RECORD_BYTES = 512
"""Size of the space for an exit record, which is reserved at the start, before the disk is full."""
_ENDING_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_FORWARDED_SIGNALS = frozenset({signal.SIGUSR1, signal.SIGUSR2})
_AWAITED_SIGNALS = _ENDING_SIGNALS | _FORWARDED_SIGNALS | {signal.SIGCHLD}
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4


def fork_witness(files: LaunchFiles, rank: int) -> None:
    """Fork this process, and return only in the child, which is the rank.

    The parent becomes the witness, and never returns. To be called from the only thread, before any library
    is loaded.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where a launcher ignores it, no child can be awaited
    # Blocked before the fork: a signal to the witness waits until the witness asks for it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED_SIGNALS)
    witness = os.getpid()
    rank_pid = os.fork()
    if rank_pid:
        _Witness(files, rank, rank_pid).run()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != witness:  # the witness died before the prctl
        os._exit(128 + signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class _Witness:
    """The witness of a rank, whose process ID is ``rank_pid``."""

    def __init__(self, files: LaunchFiles, rank: int, rank_pid: int) -> None:
        self._files = files
        self._rank = rank
        self._pid = rank_pid
        self._oom_kills = oom_kills()
        self._lease_ns, self._renewed_at = 0, time.monotonic()
        self._ended_by = ""
        self._stopped_until = -math.inf
        self._kill_at = math.inf
        self._forward_at: dict[signal.Signals, float] = {}
        """For each signal that ends the rank, the time at which it is forwarded; infinity after that."""

    def run(self) -> NoReturn:
        """Wait until the rank exits, record how it exited, and exit with the same status or signal."""
        try:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            _write(self._files.witness(self._rank), str(os.getpid()))
            with suppress(OSError):  # blanks reserve space on the disk, and may follow the JSON record
                _temporary(self._files.exit(self._rank)).write_text(" " * _RECORD_BYTES)
            status = self._wait()
            self._record(status)
            _exit_alike(status)
        finally:  # an error here must not return into the rank's program
            os._exit(1)

    def _wait(self) -> int:
        """Forward signals and check the lease until the rank exits, and return its wait status."""
        while True:
            awaited = min([self._kill_at, *self._forward_at.values()]) - time.monotonic()
            received = signal.sigtimedwait(_AWAITED_SIGNALS, max(0.0, min(_CHECK_SECONDS, awaited)))
            status = self._status()
            number = signal.Signals(received.si_signo) if received else None
            if status is not None:
                self._ended_by = self._ended_by or ("signal" if number in _ENDING_SIGNALS else "")
                return status
            if number in _ENDING_SIGNALS:
                self._end("signal", number)
            elif number in _FORWARDED_SIGNALS:
                self._send(number)
            if not self._ended_by and self._lease_has_expired():
                self._end("lease", signal.SIGTERM)
            for planned, at in self._forward_at.items():
                if time.monotonic() >= at:
                    self._forward_at[planned] = math.inf
                    self._send(planned)
                    self._send(signal.SIGCONT)
            if time.monotonic() >= self._kill_at:
                os.kill(self._pid, signal.SIGKILL)
                self._kill_at = math.inf  # a rank in uninterruptible sleep exits when it can

    def _lease_has_expired(self) -> bool:
        """Return whether the launching process has not touched the lease for ``LEASE_SECONDS``.

        Only a change of the file's time counts, so the clocks of two hosts may differ.
        """
        # The folder may be gone, and the parent with it.
        with suppress(OSError):
            modified_ns = self._files.lease.stat().st_mtime_ns
            if modified_ns != self._lease_ns:
                self._lease_ns, self._renewed_at = modified_ns, time.monotonic()
        return time.monotonic() - self._renewed_at > LEASE_SECONDS

    def _status(self) -> int | None:
        """Return the rank's wait status if it has exited; otherwise None.

        This also records until when the rank was stopped, as by SIGSTOP.
        """
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                return None
            if not (os.WIFSTOPPED(status) or os.WIFCONTINUED(status)):
                return status
            self._stopped_until = math.inf if os.WIFSTOPPED(status) else time.monotonic()

    def _end(self, ended_by: str, number: signal.Signals) -> None:
        """Plan to forward a signal, and to kill the rank later; ``ended_by`` is for the exit record."""
        now = time.monotonic()
        if not self._ended_by:
            self._ended_by, self._kill_at = ended_by, now + KILL_SECONDS
        self._forward_at.setdefault(number, now + _FORWARD_SECONDS)
        self._send(signal.SIGCONT)  # a stopped process receives nothing else

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def _record(self, status: int) -> None:
        """Write the exit record of a rank with this wait status; its fields are those of ``RankExit``."""
        at = time.time()
        code = os.waitstatus_to_exitcode(status)
        # A launcher sends SIGTERM to both, and the rank may be first to receive it.
        if (
            code == -signal.SIGTERM
            and not self._ended_by
            and signal.sigtimedwait(_ENDING_SIGNALS, _SAME_MOMENT_SECONDS)
        ):
            self._ended_by = "signal"
        record = {
            "pid": self._pid,
            "time": at,
            "status": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "ended_by": self._ended_by,
            "shortage": self._shortage(-code),
            # A launcher wakes a stopped rank to end it.
            "stopped": time.monotonic() - self._stopped_until < KILL_SECONDS + _SAME_MOMENT_SECONDS,
        }
        _write(self._files.exit(self._rank), json.dumps(record))

    def _shortage(self, number: int) -> dict[str, object] | None:
        """Return the limit on memory that may be why a signal of this number ended the rank.

        The fields are those of ``Shortage``. The kernel counts whom it kills because memory is short, and a
        library that gets no address space aborts.
        """
        if number == signal.SIGKILL and not self._ended_by and oom_kills() > self._oom_kills:
            limit_bytes, is_of_group = memory_limit_bytes()
            return {"limit_bytes": limit_bytes, "limit": "control group" if is_of_group else "host"}
        limit = address_limit_bytes()
        aborted = number == signal.SIGABRT and limit
        return {"limit_bytes": limit, "limit": "address space"} if aborted else None


def _write(file: Path, text: str) -> None:
    """Write text into a file, whole or not at all.

    Errors are ignored, because the launching process reports a full disk or a missing folder by itself.
    """
    temporary = _temporary(file)
    with suppress(OSError):
        # The reserved space is overwritten, not truncated.
        with temporary.open("r+" if temporary.exists() else "w") as opened:
            opened.write(text)
        temporary.replace(file)


def _temporary(file: Path) -> Path:
    return file.with_name(f".{file.name}")


def _exit_alike(status: int) -> NoReturn:
    """Exit with the status or the signal of a wait status, without a core file."""
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

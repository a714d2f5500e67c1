"""Hold the ranks of one launch on this host between their turns.

A rank waits on a named pipe that only the agent holds for writing. When the agent is killed, the rank reads
the end of the file and exits. Where a library's threads run on meanwhile, the agent stops the whole process.
It wakes the process before it writes, so the pipe alone decides, and no wake-up is lost.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from compare.errors import InterleaveError, system_reason
from compare.schema.turns import Arrival, Turn, TurnFiles

_READ_BYTES = 1 << 16


class TurnGate:
    """The gate of the ranks of one launch on this host."""

    def __init__(self, directory: Path, ranks: int, *, stops: bool) -> None:
        self._files = TurnFiles(directory)
        self._ranks = ranks
        self._stops = stops
        self._waiting: dict[int, Arrival] = {}
        self._received = b""
        self._turns: dict[int, int] = {}
        os.mkfifo(self._files.arrivals, 0o600)
        # Held for writing as well, so that it has no end of file between two ranks.
        self._arrivals = os.open(self._files.arrivals, os.O_RDWR | os.O_NONBLOCK)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a rank arrives."""
        return self._arrivals

    def arrived(self) -> list[Arrival]:
        """Return all arrivals once, when the last rank is there.

        Their processes are stopped by then, where the arm needs it.

        Raises:
            InterleaveError: a process cannot be stopped.
        """
        with suppress(BlockingIOError):
            self._received += os.read(self._arrivals, _READ_BYTES)
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            arrival = msgspec.json.decode(line, type=Arrival)
            self._waiting[arrival.rank] = arrival
        if not lines or len(self._waiting) < self._ranks:
            return []
        if self._stops:
            self._signal(signal.SIGSTOP)
        return list(self._waiting.values())

    def go(self, turn: Turn) -> None:
        """Wake every rank, and give it its turn."""
        if self._stops:
            self._signal(signal.SIGCONT)
        for rank in self._waiting:
            with suppress(OSError):  # the rank has exited, and its record says how
                self._write(rank, turn)
        self._waiting.clear()

    def _write(self, rank: int, turn: Turn) -> None:
        if rank not in self._turns:
            self._turns[rank] = os.open(self._files.turns(rank), os.O_WRONLY | os.O_NONBLOCK)
        os.write(self._turns[rank], msgspec.json.encode(turn) + b"\n")

    def close(self) -> None:
        """Close the pipes; ranks that wait then exit."""
        for descriptor in (self._arrivals, *self._turns.values()):
            os.close(descriptor)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes():
            try:
                os.kill(process.pid, number)
            except ProcessLookupError:
                continue
            except OSError as error:
                raise InterleaveError(
                    "A rank that waits for its turn cannot be stopped.",
                    found=f"Process {process.pid}: {system_reason(error)}.",
                    remedy="Run one launch after another: --interleave launches.",
                ) from None

    def _processes(self) -> Iterator[psutil.Process]:
        """Find the waiting ranks, and everything that they have started."""
        for arrival in self._waiting.values():
            with suppress(psutil.NoSuchProcess):
                rank = psutil.Process(arrival.pid)
                yield rank
                yield from rank.children(recursive=True)

"""Hold the ranks of one launch on this host between their turns.

A rank waits on a named pipe that only the agent holds open for writing. When the agent is killed, the rank
reads the end of the file and exits. If threads of a library would run on, the agent stops the rank
(SIGSTOP). It also stops a rank that has child processes, together with these, because a data loader's workers
would go on fetching. It continues all of them before it writes a turn, so no wake-up is lost.
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
    """Holds the ranks of one launch on this host until they get their turn.

    ``directory`` is the folder of the pipes, and ``ranks`` the number of ranks on this host. With ``stops``,
    all waiting ranks are stopped, otherwise only those with child processes.
    """

    def __init__(self, directory: Path, ranks: int, *, stops: bool) -> None:
        self._files = TurnFiles(directory)
        self._ranks = ranks
        self._stops = stops
        self._waiting: dict[int, Arrival] = {}
        self._stopped_processes: list[int] = []
        self._received = b""
        self._turns: dict[int, int] = {}
        os.mkfifo(self._files.arrivals, 0o600)
        # Held for writing as well, so that it has no end of file between two ranks.
        self._arrivals = os.open(self._files.arrivals, os.O_RDWR | os.O_NONBLOCK)

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when a rank begins to wait."""
        return self._arrivals

    def arrived(self) -> list[Arrival]:
        """Return what each rank reported on arrival, once the last rank waits; otherwise an empty list.

        An arrival is returned only once. By then, every process that would run on has been stopped.

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
        self._stopped_processes = list(self._processes_to_stop())
        self._signal(signal.SIGSTOP)
        return list(self._waiting.values())

    def go(self, turn: Turn) -> None:
        """Continue the stopped processes, and send every waiting rank its turn.

        Raises:
            InterleaveError: a process cannot be continued.
        """
        self._signal(signal.SIGCONT)
        for rank in self._waiting:
            with suppress(OSError):  # the rank has exited, and its record says how
                if rank not in self._turns:
                    self._turns[rank] = os.open(self._files.turns(rank), os.O_WRONLY | os.O_NONBLOCK)
                os.write(self._turns[rank], msgspec.json.encode(turn) + b"\n")
        self._waiting.clear()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._stopped_processes:
            try:
                os.kill(process, number)
            except ProcessLookupError:
                continue
            except OSError as error:
                raise InterleaveError(
                    "A rank cannot be paused while it waits for its turn.",
                    found=f"Process {process}: {system_reason(error)}.",
                    remedy="Run one launch after another: --interleave launches.",
                ) from None

    def _processes_to_stop(self) -> Iterator[int]:
        """Yield the process ids of waiting ranks that would run on, and of all their descendants."""
        children: dict[int, list[int]] = {}
        for process in psutil.process_iter(["ppid"]):  # once for all ranks: it takes milliseconds
            children.setdefault(process.info["ppid"], []).append(process.pid)
        for arrival in self._waiting.values():
            if self._stops or arrival.pid in children:
                family = [arrival.pid]
                for member in family:  # which grows meanwhile
                    family += children.get(member, [])
                yield from family

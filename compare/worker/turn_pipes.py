"""Wait between turns, while other arms train.

A rank waits outside its library, with its device idle. It waits in ``poll``, which takes no CPU time. Some
libraries have threads that continue to run, so the agent stops their processes during the wait.
"""

from __future__ import annotations

import os
import select
from pathlib import Path
from time import perf_counter_ns, process_time_ns

import msgspec

from compare.schema.turns import Arrival, Memory, Turn, TurnFiles

_TURN_BYTES = 4096
"""Maximum size of a turn as JSON, which a pipe carries in one write."""


class TurnPipes:
    """The pipes of one rank to the agent of its host."""

    def __init__(self, directory: Path, rank: int) -> None:
        files = TurnFiles(directory)
        self._rank = rank
        os.mkfifo(files.turns(rank), 0o600)
        # Not blocking: the agent opens its end when this rank arrives first.
        self._turns = os.open(files.turns(rank), os.O_RDONLY | os.O_NONBLOCK)
        self._arrivals = os.open(files.arrivals, os.O_WRONLY)
        self.waited_ns = 0
        """Time of all waits together."""
        self.waited_cpu_ns = 0
        """CPU time of the process during all waits, in all its threads."""

    def wait(self, step_seconds: float, memory: Memory) -> Turn:
        """Tell the agent that this rank is waiting, and return the rank's next turn once it arrives.

        Raises:
            RuntimeError: the agent of this host exited.
        """
        arrival = Arrival(
            rank=self._rank,
            pid=os.getpid(),
            step_seconds=step_seconds,
            memory=memory,
        )
        began, began_cpu = perf_counter_ns(), process_time_ns()
        os.write(self._arrivals, msgspec.json.encode(arrival) + b"\n")
        poll = select.poll()
        poll.register(self._turns, select.POLLIN)
        poll.poll()  # it waits also where the agent has not opened its end yet
        line = os.read(self._turns, _TURN_BYTES)
        self.waited_ns += perf_counter_ns() - began
        self.waited_cpu_ns += process_time_ns() - began_cpu
        if not line:
            raise RuntimeError("The agent of this host exited while the rank waited for its turn.")
        return msgspec.json.decode(line, type=Turn)

"""Wait for the agent of a rank's host to start the next turn, while other arms train.

A rank waits outside its library, with its device idle. It waits in ``poll``, which takes no CPU time. Some
libraries have threads that continue to run, so the agent stops the processes of such ranks.
"""

from __future__ import annotations

import os
import select
from pathlib import Path
from time import perf_counter_ns, process_time_ns

import msgspec

from compare.schema.turns import Arrival, Memory, Turn, TurnFiles

_TURN_BYTES = 4096
"""Maximum size of a ``Turn`` as JSON, which a pipe carries in one write."""


class TurnPipes:
    """The pipes between one rank and the agent of its host; ``directory`` is the folder of ``TurnFiles``."""

    def __init__(self, directory: Path, rank: int) -> None:
        files = TurnFiles(directory)
        self._rank = rank
        os.mkfifo(files.turns(rank), 0o600)
        # Not blocking: the agent opens its end when this rank arrives first.
        self._turns = os.open(files.turns(rank), os.O_RDONLY | os.O_NONBLOCK)
        self._arrivals = os.open(files.arrivals, os.O_WRONLY)
        self.waited_ns = 0
        """Time of all waits together, in nanoseconds."""
        self.waited_cpu_ns = 0
        """CPU time that all threads of this process took during the waits, in nanoseconds."""

    def wait(self, step_seconds: float, memory: Memory) -> Turn:
        """Send the agent a message that this rank waits, and return the rank's next turn when it arrives.

        ``step_seconds`` is the time of a step as last measured, and ``memory`` what the rank uses.

        Raises:
            RuntimeError: the agent of this host exited during the wait.
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

"""Define the messages between ranks and the agent of their host, which lets launches train in turns.

In a turn, only the ranks of one launch train, while those of the other launches wait. A rank waits when it
has joined its group, before and after each turn, and before it leaves. It then writes an ``Arrival`` into a
pipe that all ranks of its launch on this host share. It reads its next ``Turn`` from a pipe of its own. All
of these are named pipes in one folder.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

LEAST_STEPS = 5
"""The smallest number of timed steps in each block of a turn."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that a rank uses, in bytes."""

    peak_bytes: int
    """Largest resident set of the process so far."""
    gpu_peak_bytes: int = 0
    """The most memory that torch has reserved on the GPU so far; 0 on a CPU."""
    gpu_left_bytes: int | None = None
    """Free memory of the rank's GPU; None on a CPU."""


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """The message of a rank that it now waits for its next turn."""

    rank: int
    pid: int
    step_seconds: float
    """Time of a step as the rank last measured it; 0 before its first measurement."""
    memory: Memory


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """The message to a rank that states how many steps it trains until it waits again."""

    number: int
    """Number of the timed turn in the launch, from 1; 0 if no timed turn follows, as in ``GO_ON``."""
    untimed_steps: int = 0
    """Number of steps at the start of the turn that are not timed."""
    timed_steps: int = 0


class PlannedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn in the plan of a round, which is made before the first turn."""

    arm: int
    """Index of the arm's launch among the launches that take turns."""
    number: int
    """Number of the turn among the turns of the arm, from 1."""
    seconds: float
    """Length of the whole turn."""
    lead_seconds: float
    """Length of the first part of the turn, which is not timed."""


GO_ON = Turn(number=0)
"""The message that ends a wait without a timed turn: the rank warms up, ends its turns, or leaves."""


def turn_of(number: int, *, lead_seconds: float, seconds: float, step_seconds: float) -> Turn:
    """Return a turn that takes about ``seconds``, and whose first ``lead_seconds`` are not timed.

    ``step_seconds`` is the time of a step. Both parts have at least one step. A rank may take more timed
    steps, because each block has at least ``LEAST_STEPS``.
    """
    lead = max(1, round(lead_seconds / step_seconds))
    timed = max(1, round((seconds - lead_seconds) / step_seconds))
    return Turn(number=number, untimed_steps=lead, timed_steps=timed)


class TurnFiles:
    """The paths of the named pipes of one launch on one host, all in the folder ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.arrivals = directory / "arrivals"
        """The pipe into which all ranks write an ``Arrival``, one JSON object a line."""
        self._directory = directory

    def turns(self, rank: int) -> Path:
        """Return the pipe from which a rank reads a ``Turn``, one JSON object a line."""
        return self._directory / f"rank-{rank}.turns"

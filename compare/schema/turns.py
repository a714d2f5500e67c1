"""Define what ranks exchange with the agent of their host between turns.

A rank waits when it has joined its group, before and after each turn, and before it leaves. It writes an
``Arrival`` into a pipe that all ranks of its host share. It reads its next ``Turn`` from a pipe of its own.
All are named pipes in one folder.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

LEAST_STEPS = 5
"""Fewest timed steps of a turn."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a rank, in bytes."""

    peak_bytes: int
    """Largest resident set of the process so far."""
    gpu_peak_bytes: int = 0
    """Most that torch held on its GPU so far."""
    gpu_left_bytes: int | None = None
    """What is free on its GPU; None on a CPU."""


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A rank waits for a turn."""

    rank: int
    pid: int
    step_seconds: float
    """Time of a step of its arm, as it was last measured; 0 before the first."""
    memory: Memory


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank does until it waits again."""

    number: int
    """Counts from 1 within a launch; 0 for what is no timed turn."""
    untimed_steps: int = 0
    """First steps, which train but are not timed."""
    timed_steps: int = 0


class PlannedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn of a cohort, settled before its first one."""

    arm: int
    """Index in the order of the cohort's launches."""
    number: int
    """Counts from 1 within the arm."""
    seconds: float
    """Its whole length."""
    lead_seconds: float
    """Its first part, which is not timed."""


GO_ON = Turn(number=0)
"""Ends a wait that no timed turn follows: the rank warms up, or ends its turns, or leaves."""


def turn_of(number: int, *, lead_seconds: float, seconds: float, step_seconds: float) -> Turn:
    """Return a turn of about ``seconds``.

    Its first ``lead_seconds`` are not timed. A rank takes more steps if they would be too few.
    """
    lead = max(1, round(lead_seconds / step_seconds))
    timed = max(1, round((seconds - lead_seconds) / step_seconds))
    return Turn(number=number, untimed_steps=lead, timed_steps=timed)


class TurnFiles:
    """The pipes of one launch on one host."""

    def __init__(self, directory: Path) -> None:
        self.arrivals = directory / "arrivals"
        """Ranks write an ``Arrival`` here, one JSON object a line."""
        self._directory = directory

    def turns(self, rank: int) -> Path:
        """Return where a rank reads a ``Turn``, one JSON object a line."""
        return self._directory / f"rank-{rank}.turns"

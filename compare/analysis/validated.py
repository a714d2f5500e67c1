"""Hold the errors of predictions, for links as measured and faster ones.

``python -m tests.bench.predictions`` measures them; docs/predictions.md shows every cell. Each is the larger
of two: Student's interval for one more cell of such rates, and their largest error.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from compare.analysis.timeline import Schedule

Regime: TypeAlias = Literal["wire", "other"]
"""``wire``: bytes take half of the step, and 10 ms a call."""

WIRE_SECONDS = 0.010
WIRE_SHARE = 0.5
VALIDATED_HOSTS = 4
VALIDATED_RATES = 2.0
"""Largest ratio of hosts' rates, either way."""

_VALIDATED: set[tuple[str, Schedule]] = {
    ("torch.distributed gloo", "after"),
    ("torch.distributed gloo", "overlap"),
    ("Open MPI", "after"),
}
_ERROR = 0.20
"""At the measured rate, or a slower one."""
_FASTER = 1.78
"""At a faster rate, where the hosts themselves may be the limit."""
_LARGEST = 0.69
"""Largest error of any cell."""


def has_cells(library: str, schedule: Schedule) -> bool:
    """Return whether such arms were measured and compared."""
    return (library, schedule) in _VALIDATED


def validated_error(library: str, schedule: Schedule, *, faster: bool = False) -> float:
    """Return the relative error that no interval is narrower than.

    It is the larger of two times over the smaller, minus one. Arms without cells have at least the largest
    error of any cell.
    """
    error = _FASTER if faster else _ERROR
    return error if has_cells(library, schedule) else max(error, _LARGEST)


def regime_of(wire: float, calls: int, step: float) -> Regime:
    """Return the regime of a step, by the seconds of its bytes."""
    dominates = wire >= WIRE_SECONDS * calls and wire >= WIRE_SHARE * step
    return "wire" if dominates else "other"

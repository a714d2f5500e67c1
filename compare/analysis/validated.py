"""Hold the errors of predictions, by library and timeline.

``python -m tests.bench.predictions`` measures them; docs/predictions.md shows every cell.
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

_ERRORS: dict[tuple[str, Schedule], float] = {
    ("torch.distributed gloo", "after"): 0.10,
    ("torch.distributed gloo", "overlap"): 0.16,
    ("Open MPI", "after"): 0.20,
}
"""At the measured rate, or a slower one."""
_LARGEST = 0.20
_FASTER = 0.75
"""At a faster rate, where the hosts themselves may be the limit."""


def has_cells(library: str, schedule: Schedule) -> bool:
    """Return whether such arms were measured and compared."""
    return (library, schedule) in _ERRORS


def validated_error(library: str, schedule: Schedule, *, faster: bool = False) -> float:
    """Return the relative error that covers the measured cells.

    It is the larger of two times over the smaller, minus one. A combination without cells has the largest.
    """
    error = _ERRORS.get((library, schedule), _LARGEST)
    return max(error, _FASTER) if faster else error


def regime_of(wire: float, calls: int, step: float) -> Regime:
    """Return the regime of a step, by the seconds of its bytes."""
    dominates = wire >= WIRE_SECONDS * calls and wire >= WIRE_SHARE * step
    return "wire" if dominates else "other"

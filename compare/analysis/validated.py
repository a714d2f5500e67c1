"""Hold the errors of predictions, by library and schedule.

``python -m tests.bench.predictions`` measures them; docs/predictions.md shows every cell. Each is the larger
of two: Student's interval for one more such cell, and their largest error.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from compare.analysis.timeline import Schedule

Regime: TypeAlias = Literal["wire", "other"]
"""``wire``: bytes take half of the step, and 10 ms a call."""

WIRE_SECONDS = 0.010
WIRE_SHARE = 0.5
VALIDATED_HOSTS = 4
VALIDATED_LAUNCHES = 2
"""Every cell was predicted from so many launches."""
VALIDATED_RATES = (0.5, 2.5)
"""Minimum and maximum ratio of the predicted rate to the measured rate."""

_ERRORS: dict[tuple[str, Schedule], float] = {
    ("torch.distributed gloo", "after"): 0.10,
    ("torch.distributed gloo", "overlap"): 0.11,
    ("Open MPI", "after"): 0.60,
    ("Horovod", "fused"): 0.49,
}
_LARGEST_ERROR = max(_ERRORS.values())


def has_cells(library: str, schedule: Schedule) -> bool:
    """Return whether such arms were measured and compared."""
    return (library, schedule) in _ERRORS


def validated_error(library: str, schedule: Schedule, *, like_cells: bool = True) -> float:
    """Return the relative error that no interval is narrower than.

    It is the larger of two times over the smaller, minus one. A prediction that is like no cell has the
    largest error of any kind of cells.
    """
    return _ERRORS.get((library, schedule), _LARGEST_ERROR) if like_cells else _LARGEST_ERROR


def regime_of(wire: float, calls: int, step: float) -> Regime:
    """Return the regime of a step, by the seconds of its bytes."""
    dominates = wire >= WIRE_SECONDS * calls and wire >= WIRE_SHARE * step
    return "wire" if dominates else "other"

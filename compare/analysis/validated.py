"""Hold the errors of predictions, by library and schedule.

``python -m tests.bench.predictions`` measures the errors. A cell is one launch that was predicted and
measured; docs/predictions.md shows every cell. Each error is the larger of two: the end of Student's interval
for one more such cell, and the largest error of the cells.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from compare.analysis.timeline import Schedule

Regime: TypeAlias = Literal["wire", "other"]
"""``wire``: bytes take half of the step or more, and 10 ms or more for each call."""

WIRE_SECONDS = 0.010
WIRE_SHARE = 0.5
VALIDATED_HOSTS = 4
"""Largest number of hosts in a cell."""
VALIDATED_LAUNCHES = 2
"""Number of launches from which every cell was predicted."""
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
    """Return whether any cell has an arm with this library and this schedule."""
    return (library, schedule) in _ERRORS


def validated_error(library: str, schedule: Schedule, *, like_cells: bool = True) -> float:
    """Return the relative error of a prediction, which is the least that its interval allows for.

    The error is the larger of the predicted and the measured time over the smaller one, minus one. A
    prediction that is like no cell has the largest error of all kinds of cells.
    """
    return _ERRORS.get((library, schedule), _LARGEST_ERROR) if like_cells else _LARGEST_ERROR


def regime_of(wire: float, calls: int, step: float) -> Regime:
    """Return the regime of a step, from its seconds ``step`` and the seconds ``wire`` of its bytes."""
    dominates = wire >= WIRE_SECONDS * calls and wire >= WIRE_SHARE * step
    return "wire" if dominates else "other"

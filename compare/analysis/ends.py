"""Compare the parameters with which arms ended."""

from __future__ import annotations

import math
from collections.abc import Iterable

from compare.schema.results import Run

ROUNDING_MAKES = 1e-3
"""Largest distance of two ends that still counts as rounding, relative to how far the arms moved.

It is ten thousand times the rounding of float32, because a training makes small differences grow.
"""


def distance_of_ends(run: Run, names: Iterable[str]) -> float | None:
    """Return how far the named arms' ends lie apart, relative to how far they moved from the start.

    It is the largest distance of a launch from the first one over the largest movement, by rank 0's sketches.
    None if a launch has no sketch, or if the arms have no launch.
    """
    chosen = set(names)
    sketches = [launch.ranks[0].sketch for launch in run.launches if launch.arm in chosen]
    if not sketches or not all(sketches):
        return None
    first, *others = sketches
    moved = max(math.hypot(*sketch) for sketch in sketches)
    apart = max((math.dist(first, other) for other in others), default=0.0)
    return apart / moved if moved else 0.0

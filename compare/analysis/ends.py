"""Compare what arms ended with."""

from __future__ import annotations

import math
from collections.abc import Iterable

from compare.schema.results import Run

ROUNDING_MAKES = 1e-3
"""Largest distance of two ends that rounding is taken for, relative to how far they moved.

It lies ten thousand times above a rounding in float32, because a training makes small differences grow.
"""


def distance_of_ends(run: Run, names: Iterable[str]) -> float | None:
    """Return how far the ends of arms lie apart, over how far they moved from the start.

    It is the largest distance from the first launch, by the sketches of rank 0. None where one has none.
    """
    chosen = set(names)
    sketches = [launch.ranks[0].sketch for launch in run.launches if launch.arm in chosen]
    if not sketches or not all(sketches):
        return None
    first, *others = sketches
    moved = max(math.hypot(*sketch) for sketch in sketches)
    apart = max((math.dist(first, other) for other in others), default=0.0)
    return apart / moved if moved else 0.0

"""Plan the blocks of a script: how long they are, in which order, and whether one fits."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from compare.schema.metered import Kind, MeterSettings

SHORTEST_BLOCK = 5
"""Number of timed steps below which the blocks of a script with short epochs are not shortened."""
TRIES_PER_PAIR = 2
"""How often pairs are tried, as a multiple of the pairs wanted, because some are discarded."""


def orders(settings: MeterSettings) -> Iterator[tuple[Kind, Kind]]:
    """Yield the kinds of the two blocks of each pair, in the order in which they are measured.

    Pairs come in twos of opposite order, so a drift that is the same for all pairs cancels.
    """
    draw = random.Random(settings.seed)
    other: Kind = "aa" if settings.aa else "local"
    while True:
        pair: tuple[Kind, Kind] = ("synchronised", other)
        if draw.random() < 1 / 2:
            pair = pair[::-1]
        yield pair
        yield pair[::-1]


def block_steps(wanted: int, steps_of_epoch: int | None) -> int:
    """Return the number of timed steps of a block, so that a pair of blocks fits into an epoch.

    ``steps_of_epoch`` is None if it is not known. Then a script may end or evaluate within a block.
    """
    if steps_of_epoch is None:
        return wanted
    return min(wanted, max(SHORTEST_BLOCK, (steps_of_epoch - 3) // 2 - 1))


def steps_to_wait(steps_left: int | None, block: int, steps_of_epoch: int | None) -> int:
    """Return the number of steps to wait before a pair of blocks; 0 if it fits into the epoch.

    The step after the last one of an epoch comes after what a script does between epochs.
    """
    needed = 2 * (block + 1) + 1
    if steps_left is None or steps_left >= needed or (steps_of_epoch or math.inf) < needed:
        return 0
    return steps_left + 2

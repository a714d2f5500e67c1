"""Time the all-reduces of a step alone, without any computing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

_WARMUP_ROUNDS = 3
ROUNDS = 10
"""Number of timed rounds; each has all messages of a step once, all in flight together."""


def time_messages(
    starts: Sequence[Callable[[], Callable[[], None]]], now: Callable[[], float]
) -> list[float]:
    """Return the seconds of each of ``ROUNDS`` rounds of messages.

    Each of ``starts`` starts the messages of one way of synchronising, and returns a function that waits for
    them. ``now`` returns the time in seconds, after all work on a GPU.
    """
    times = [now()]
    for _ in range(_WARMUP_ROUNDS + ROUNDS):
        for wait in [start() for start in starts]:
            wait()
        times.append(now())
    return [end - begin for begin, end in itertools.pairwise(times)][_WARMUP_ROUNDS:]

"""Read the time from a clock that cannot be set."""

from __future__ import annotations

import time

_BOOTED_AT = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def unix_time() -> float:
    """Return the Unix time, without later changes of the clock.

    The machine's clock is read once, at the start. So differences are true. Time in suspension counts.
    """
    return _BOOTED_AT + time.clock_gettime(time.CLOCK_BOOTTIME)

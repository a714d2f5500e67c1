"""Read the time from a clock that does not follow changes of the machine's clock."""

from __future__ import annotations

import time

_BOOTED_AT = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def unix_time() -> float:
    """Return the Unix time in seconds, unaffected by later changes of the machine's clock.

    That clock is read only once, when this module is imported, so differences of two times are right. Time
    during which the machine was suspended counts.
    """
    return _BOOTED_AT + time.clock_gettime(time.CLOCK_BOOTTIME)

"""Read the time without the jumps that occur when the machine's clock is set."""

from __future__ import annotations

import time

_BOOTED_AT = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def unix_time() -> float:
    """Return the Unix time in seconds, as if nothing set the machine's clock after this module's import.

    So differences of two times are right. Time during which the machine is suspended counts.
    """
    return _BOOTED_AT + time.clock_gettime(time.CLOCK_BOOTTIME)

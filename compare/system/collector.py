"""Set how often Python's garbage collector looks for cycles."""

from __future__ import annotations

import gc

_THRESHOLDS = 100_000, 50, 100
"""Numbers of new objects, and of the searches among newer ones, after which a generation is searched.

By default they are 700, 10 and 10.
"""


def collect_rarely() -> None:
    """Let the collector search for cycles rarely; a command calls this when it starts.

    Results of hundreds of ranks are millions of objects without cycles. To search them again and again would
    take longer than to read them.
    """
    gc.set_threshold(*_THRESHOLDS)

"""Spare Python's garbage collector objects that form no cycles and last."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def making_lasting_objects() -> Iterator[None]:
    """Keep the collector from searching the objects of the block for cycles, then and later.

    Decoded results form no cycles, and most of them last until the program ends. To search them again and
    again took two thirds of the time to read those of 512 ranks.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()

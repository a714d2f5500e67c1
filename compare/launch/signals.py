"""Ctrl-C, and what is treated as one: SIGTERM, and the end of the terminal."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

INTERRUPTED = 130
"""The exit code of whoever was interrupted, as shells have it."""

_FROM_OUTSIDE = (signal.SIGTERM, signal.SIGHUP)
_INTERRUPTS = (signal.SIGINT, *_FROM_OUTSIDE)


def end_in_good_order() -> None:
    """Asked to end from outside, or with its terminal closed, the program ends as on Ctrl-C from now on."""
    for ending in _FROM_OUTSIDE:
        if signal.getsignal(ending) is signal.SIG_DFL:  # under nohup it is ignored, and stays so
            signal.signal(ending, signal.default_int_handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let no Ctrl-C come between a launch and the end of its traces; only the main thread ever hears one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = ignore_interrupts()
    try:
        yield
    finally:
        for interrupt, handler in before.items():
            signal.signal(interrupt, handler)


def ignore_interrupts() -> dict[signal.Signals, Any]:
    """From now on ignore Ctrl-C, and what is treated as one; return what was done about them before."""
    before = {interrupt: signal.getsignal(interrupt) for interrupt in _INTERRUPTS}
    meant = {i: handler for i, handler in before.items() if handler is signal.default_int_handler}
    for interrupt in meant:
        signal.signal(interrupt, signal.SIG_IGN)
    return meant

"""Handle interrupts (Ctrl-C, SIGTERM and the end of the terminal) and suspension (Ctrl-Z)."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

INTERRUPTED = 130
"""The exit code of an interrupted program, as in shells."""

_FROM_OUTSIDE = (signal.SIGTERM, signal.SIGHUP)
_INTERRUPTS = (signal.SIGINT, *_FROM_OUTSIDE)


class Suspended(KeyboardInterrupt):
    """Raised at Ctrl-Z, so that running launches are ended before this program stops."""


@contextlib.contextmanager
def suspendable() -> Iterator[None]:
    """Raise ``Suspended`` at the first Ctrl-Z within the block.

    Otherwise this program would stop at once, and its agents would take it for lost. The block has no effect
    outside the main thread, or where Ctrl-Z has another handler already.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
        yield
        return

    def suspend(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        raise Suspended

    signal.signal(signal.SIGTSTP, suspend)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def stop_until_continued() -> None:
    """Stop this program, as Ctrl-Z does, until ``fg``."""
    os.kill(os.getpid(), signal.SIGSTOP)


def end_in_good_order() -> None:
    """Treat SIGTERM and SIGHUP as Ctrl-C from now on, unless they are ignored or handled already."""
    for ending in _FROM_OUTSIDE:
        if signal.getsignal(ending) is signal.SIG_DFL:  # under nohup it is ignored, and stays so
            signal.signal(ending, signal.default_int_handler)


@contextlib.contextmanager
def uninterrupted(handler: Any = signal.SIG_IGN) -> Iterator[None]:
    """Ignore interrupts within the block, so that a clean-up is complete, or let ``handler`` handle them."""
    replaced = ignore_interrupts(handler)
    try:
        yield
    finally:
        for interrupt in replaced:
            signal.signal(interrupt, signal.default_int_handler)


@contextlib.contextmanager
def postponed_interrupts(react: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Postpone interrupts until the end of the block, but call ``react`` as soon as one comes.

    Raises:
        KeyboardInterrupt: an interrupt came within the block.
    """
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        came.append(number)
        react()

    try:
        with uninterrupted(note):
            yield
    finally:
        if came:
            raise KeyboardInterrupt


def ignore_interrupts(handler: Any = signal.SIG_IGN) -> list[signal.Signals]:
    """Ignore interrupts from now on, or let ``handler`` handle them.

    Returns:
        The signals whose handler was replaced: those that would have raised KeyboardInterrupt. Outside the
        main thread none is replaced.
    """
    if threading.current_thread() is not threading.main_thread():
        return []  # another thread receives none, and cannot set a handler
    raising = [each for each in _INTERRUPTS if signal.getsignal(each) is signal.default_int_handler]
    for interrupt in raising:
        signal.signal(interrupt, handler)
    return raising

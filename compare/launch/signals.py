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

_TERMINATIONS = (signal.SIGTERM, signal.SIGHUP)
_INTERRUPTS = (signal.SIGINT, *_TERMINATIONS)


class Suspended(KeyboardInterrupt):
    """Raised at Ctrl-Z, so that running launches are ended before this program stops."""


@contextlib.contextmanager
def suspendable() -> Iterator[None]:
    """Raise ``Suspended`` at the first Ctrl-Z within the block.

    Otherwise this program would stop at once, and its agents would take it for lost. Nothing changes outside
    the main thread, or where Ctrl-Z has another handler already.
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
    """Stop this program as Ctrl-Z does, and return when the user continues it with ``fg``."""
    os.kill(os.getpid(), signal.SIGSTOP)


def end_in_good_order() -> None:
    """Treat SIGTERM and SIGHUP as Ctrl-C from now on, unless they are ignored or handled already."""
    for termination in _TERMINATIONS:
        if signal.getsignal(termination) is signal.SIG_DFL:  # under nohup it is ignored, and stays so
            signal.signal(termination, signal.default_int_handler)


@contextlib.contextmanager
def uninterrupted(handler: Any = signal.SIG_IGN) -> Iterator[None]:
    """Within the block, let ``handler`` handle interrupts; by default they are ignored.

    So a clean-up in the block is complete. Outside the main thread nothing changes.
    """
    replaced = ignore_interrupts(handler)
    try:
        yield
    finally:
        for interrupt in replaced:
            signal.signal(interrupt, signal.default_int_handler)


@contextlib.contextmanager
def postponed_interrupts(react: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Postpone interrupts until the end of the block, but call ``react`` each time as soon as one comes.

    Raises:
        KeyboardInterrupt: an interrupt came within the block.
    """
    interrupts: list[int] = []

    def note(number: int, _frame: object) -> None:
        interrupts.append(number)
        react()

    try:
        with uninterrupted(note):
            yield
    finally:
        if interrupts:
            raise KeyboardInterrupt


def ignore_interrupts(handler: Any = signal.SIG_IGN) -> list[signal.Signals]:
    """Let ``handler`` handle interrupts from now on; by default they are ignored.

    Returns:
        The signals whose handler was replaced: those that would have raised KeyboardInterrupt. The list is
        empty outside the main thread, where no handler can be set.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    raising = [each for each in _INTERRUPTS if signal.getsignal(each) is signal.default_int_handler]
    for interrupt in raising:
        signal.signal(interrupt, handler)
    return raising

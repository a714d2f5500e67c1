"""Standard output and error: what cannot be written there is an error of output like any other."""

from __future__ import annotations

import io
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from compare.errors import OutputError, system_reason

if TYPE_CHECKING:
    from collections.abc import Iterator


def take_over() -> None:
    """From now on raise an ``OutputError`` where something cannot be printed.

    Otherwise rich and typer, each in its own way, would end the program with 1 and without a word.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, _Output(stream))


def leave_nothing_to_write() -> None:
    """Give up what could not be written: Python would try it again when it ends, and complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream:
                stream.flush()
        except OutputError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class NobodyReadsError(OutputError):
    """Whoever read has seen enough, and need not be told."""


class _Output:
    def __init__(self, stream: io.TextIOWrapper) -> None:
        stream.reconfigure(errors="replace")  # a terminal without a character shows another one
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with _told():
            return self._stream.write(text)

    def flush(self) -> None:
        with _told():
            self._stream.flush()


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise NobodyReadsError("Nobody reads what is printed any more.") from None
    except OSError as error:
        raise OutputError("What is printed cannot be written.", found=system_reason(error)) from None

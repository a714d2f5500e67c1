"""Raise an ``OutputError`` where standard output or error cannot be written."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from compare.errors import OutputError, system_reason


def take_over() -> None:
    """Replace standard output and error, so that they raise an ``OutputError`` if they cannot be written."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, _Output(stream))


def leave_nothing_to_write() -> None:
    """Flush standard output and error, and discard what they cannot write, so that Python does not warn."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream:
                stream.flush()
        except OutputError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class ClosedPipeError(OutputError):
    """The reader has closed the pipe, so no message is needed."""


class _Output:
    def __init__(self, stream: io.TextIOWrapper) -> None:
        stream.reconfigure(errors="replace")  # a terminal without a character shows another one
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with _named_errors():
            return self._stream.write(text)

    def flush(self) -> None:
        with _named_errors():
            self._stream.flush()


@contextmanager
def _named_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise ClosedPipeError("Standard output is closed.") from None
    except OSError as error:
        raise OutputError(
            "Standard output cannot be written.",
            found=system_reason(error),
            remedy="Send it to another file or terminal.",
        ) from None

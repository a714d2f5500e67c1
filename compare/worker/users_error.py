"""Describe an error by the user's line, and by the first lines of its text."""

from __future__ import annotations

import re
import traceback

from compare.data.own import belongs
from compare.text import cut

_OF_WORKER = "Original Traceback (most recent call last):"
"""The line before the traceback of a loader's worker, in the message of torch's error."""
_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+)', re.MULTILINE)


def place_of(error: BaseException, folder: str) -> str:
    """Return the innermost file:line of the user's own code in a traceback; empty if it has none."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [(frame.filename, str(frame.lineno)) for frame in frames]
    if _OF_WORKER in str(error):
        places += _FRAME.findall(str(error))
    return next((":".join(place) for place in reversed(places) if belongs(place[0], folder)), "")


def text_of(error: BaseException) -> str:
    """Return the error's class and its message, cut to five lines.

    Of an error in a loader's worker, return only the last line of the worker's traceback.
    """
    text = str(error)
    if _OF_WORKER in text:
        return f"In a loader's worker: {cut(text.strip().splitlines()[-1])}"
    return f"{type(error).__name__}: {cut(text)}"

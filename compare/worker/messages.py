"""Describe what went wrong: a user's error by its line, and the warnings of libraries by a sentence each."""

from __future__ import annotations

import re
import sys
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from compare.data.own import belongs
from compare.text import cut

_OF_WORKER = "Original Traceback (most recent call last):"
"""The line before the traceback of a loader's worker, in the message of torch's error."""
_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+)', re.MULTILINE)
_MOST = 5
_MOST_CHARACTERS, _LOG_BYTES = 300, 1 << 16
_FOR_DEVELOPERS = (DeprecationWarning, FutureWarning, ImportWarning, PendingDeprecationWarning)
_OF_TORCH = re.compile(r"^(?:\[rank\d+\]:)?\[W[^\]]*\] Warning: (.+)", re.MULTILINE)
"""A warning of torch's C++ code, which is printed without Python's ``warnings``."""
_noted: dict[str, None] = {}


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


def note_warnings() -> None:
    """Note Python's next ``_MOST`` warnings that are not for developers; all are printed as before."""
    show = warnings.showwarning

    def note(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if not issubclass(category, _FOR_DEVELOPERS) and len(_noted) < _MOST:
            _noted[_first_sentence(str(message))] = None
        show(message, category, *rest, **more)

    warnings.showwarning = note


def noted_warnings() -> list[str]:
    """Return the first sentence of each noted warning and of torch's in the log, at most ``_MOST``."""
    log = ""
    with suppress(OSError), Path(f"/proc/self/fd/{sys.stderr.fileno()}").open("rb") as printed:
        log = printed.read(_LOG_BYTES).decode(errors="replace")
    of_torch = map(_first_sentence, _OF_TORCH.findall(log))
    return list(dict.fromkeys([*_noted, *of_torch]))[:_MOST]


def _first_sentence(text: str) -> str:
    """Return the first sentence in one line, cut to ``_MOST_CHARACTERS``."""
    return " ".join(text.split()).partition(". ")[0].rstrip(".")[:_MOST_CHARACTERS]

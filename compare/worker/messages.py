"""Describe an error by its text and the user's line, and collect the warnings of libraries."""

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

_TRACEBACK_OF_LOADER = "Original Traceback (most recent call last):"
"""The line before the traceback of a loader's worker, in the message of torch's error."""
_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+)', re.MULTILINE)
_MOST_WARNINGS = 5
_MOST_CHARACTERS, _LOG_BYTES = 300, 1 << 16
_FOR_DEVELOPERS = (DeprecationWarning, FutureWarning, ImportWarning, PendingDeprecationWarning)
_TORCH_WARNING = re.compile(r"^(?:\[rank\d+\]:)?\[W[^\]]*\] Warning: (.+)", re.MULTILINE)
"""A warning of torch's C++ code, which is printed without Python's ``warnings``."""
_warning_sentences: dict[str, None] = {}


def user_line_of(error: BaseException, folder: str) -> str:
    """Return the innermost line of an error's traceback that is in a folder, as file:line.

    The result is empty if no line is. A traceback from a process of a ``DataLoader`` counts as well.
    """
    frames = traceback.extract_tb(error.__traceback__)
    lines = [(frame.filename, str(frame.lineno)) for frame in frames]
    if _TRACEBACK_OF_LOADER in str(error):
        lines += _FRAME.findall(str(error))
    return next((":".join(line) for line in reversed(lines) if belongs(line[0], folder)), "")


def describe_error(error: BaseException) -> str:
    """Return an error's class and its message, of five lines at most.

    If a worker process of a ``DataLoader`` failed, only the last line of its traceback is returned.
    """
    text = str(error)
    if _TRACEBACK_OF_LOADER in text:
        return f"In a loader's worker: {cut(text.strip().splitlines()[-1])}"
    return f"{type(error).__name__}: {cut(text)}"


def note_warnings() -> None:
    """Keep Python's next ``_MOST_WARNINGS`` warnings that are not for developers, and still print all."""
    show = warnings.showwarning

    def note(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if not issubclass(category, _FOR_DEVELOPERS) and len(_warning_sentences) < _MOST_WARNINGS:
            _warning_sentences[_first_sentence(str(message))] = None
        show(message, category, *rest, **more)

    warnings.showwarning = note


def noted_warnings() -> list[str]:
    """Return the first sentence of each warning that Python or torch's C++ code gave in this process.

    There are ``_MOST_WARNINGS`` at most, each once. Those of C++ code are read from the rank's log.
    """
    log = ""
    with suppress(OSError), Path(f"/proc/self/fd/{sys.stderr.fileno()}").open("rb") as printed:
        log = printed.read(_LOG_BYTES).decode(errors="replace")
    of_torch = map(_first_sentence, _TORCH_WARNING.findall(log))
    return list(dict.fromkeys([*_warning_sentences, *of_torch]))[:_MOST_WARNINGS]


def _first_sentence(text: str) -> str:
    """Return the first sentence of a text in one line, cut to ``_MOST_CHARACTERS``."""
    return " ".join(text.split()).partition(". ")[0].rstrip(".")[:_MOST_CHARACTERS]

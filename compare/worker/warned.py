"""Note the warnings of libraries, which a rank that succeeds attests."""

from __future__ import annotations

import re
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

_MOST = 5
_MOST_CHARACTERS, _LOG_BYTES = 300, 1 << 16
_FOR_DEVELOPERS = (DeprecationWarning, FutureWarning, ImportWarning, PendingDeprecationWarning)
_OF_TORCH = re.compile(r"^(?:\[rank\d+\]:)?\[W[^\]]*\] Warning: (.+)", re.MULTILINE)
"""A warning of torch's C++ code, which is printed without Python's ``warnings``."""
_noted: dict[str, None] = {}


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

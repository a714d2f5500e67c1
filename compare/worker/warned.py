"""Note what libraries warn of, because the log of a rank that succeeds is not read."""

from __future__ import annotations

import warnings
from typing import Any

from compare.text import cut

_MOST = 5
_FOR_DEVELOPERS = (
    DeprecationWarning,
    PendingDeprecationWarning,
    FutureWarning,
    ImportWarning,
    ResourceWarning,
)
_noted: dict[str, None] = {}


def note_warnings() -> None:
    """Note every warning from now on, beside printing it."""
    show = warnings.showwarning

    def note(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if not issubclass(category, _FOR_DEVELOPERS) and len(_noted) < _MOST:
            _noted[f"{category.__name__}: {cut(str(message)).partition(chr(10))[0]}"] = None
        show(message, category, *rest, **more)

    warnings.showwarning = note


def noted_warnings() -> list[str]:
    """Return the first lines of the first warnings, each once."""
    return list(_noted)

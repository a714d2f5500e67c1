"""Name the folder that keeps what Ringside installs outside the environment."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return ``ringside`` under ``XDG_CACHE_HOME``, or under ``~/.cache`` if that is unset or relative."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification demands that a relative path is ignored.
    return (Path(root) if Path(root).is_absolute() else Path.home() / ".cache") / "ringside"

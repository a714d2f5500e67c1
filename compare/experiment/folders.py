"""List the folders of runs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from compare.errors import OutputError, system_reason
from compare.schema.store import RESULTS_FILE

_LARGEST_BYTES = 1 << 30
"""Maximum size of a results file that is listed."""


class _Head(msgspec.Struct):
    """The fields that tell a results file of Ringside from any other."""

    ringside_version: str
    schema_version: int


def list_runs(root: Path) -> list[Path]:
    """Return the folders of runs directly in ``root`` by their names, without links to folders.

    A folder counts only if it holds a results file that Ringside wrote.

    Raises:
        OutputError: ``root`` cannot be read.
    """
    try:
        folders = [Path(entry.path) for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise OutputError(
            f"The runs in {root} cannot be listed.",
            found=f"{system_reason(error)}.",
            remedy="Name the folder that holds the folders of runs, or run `compare run` first.",
        ) from None
    return sorted(filter(_holds_run, folders))


def _holds_run(folder: Path) -> bool:
    file = folder / RESULTS_FILE
    try:
        found = file.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST_BYTES:  # a pipe would never end
            return False
        msgspec.json.decode(file.read_bytes(), type=_Head)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError):
        return False
    return True

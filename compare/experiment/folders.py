"""List the folders of runs.

A folder counts only if it holds a results file that Ringside wrote. No link is followed, neither to a folder
nor to a file.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from compare.errors import OutputError, system_reason
from compare.schema.store import OF_RUNS, RESULTS_FILE

_LARGEST_FILE = 1 << 30


class _Head(msgspec.Struct):
    """The fields that tell a results file of Ringside from any other."""

    ringside_version: str
    schema_version: int


class RunFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of a run, of collectives or of a scaling series."""

    path: Path
    file: Path
    """The results file in ``path``."""
    changed_at: float
    """Unix time at which the results file was last changed."""

    @property
    def is_run(self) -> bool:
        """Return whether the folder holds a run, not collectives or a scaling series."""
        return self.file.name == RESULTS_FILE


def list_folders(root: Path) -> list[RunFolder]:
    """Return the folders of runs directly in ``root``, from the oldest results file to the newest.

    Raises:
        OutputError: ``root`` cannot be read.
    """
    try:
        paths = [Path(entry.path) for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise OutputError(
            f"{root} holds no runs.",
            found=f"{system_reason(error)}.",
            remedy="Name the folder that holds the folders of runs, or run `compare run` first.",
        ) from None
    found = [folder for path in paths if (folder := _read(path))]
    return sorted(found, key=lambda folder: (folder.changed_at, folder.path))


def _read(path: Path) -> RunFolder | None:
    """Return ``path`` as a run's folder, with its first valid results file; None without such a file."""
    for name in OF_RUNS:
        file = path / name
        try:
            if path.is_symlink() or file.is_symlink() or not file.is_file():
                continue
            state = file.stat()
            if state.st_size > _LARGEST_FILE:
                continue
            msgspec.json.decode(file.read_bytes(), type=_Head)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError):
            continue
        return RunFolder(path=path, file=file, changed_at=state.st_mtime)
    return None

"""List the folders of runs, and remove old ones.

A folder counts only if it holds a results file that Ringside wrote. No link is followed, neither to a folder
nor to a file.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from compare.errors import OutputError, system_reason
from compare.schema.store import OF_RUNS, RESULTS_FILE

MAY_GO_ON_SECONDS = 24 * 60 * 60.0
"""Maximum time for a running command to leave its file unchanged."""
_LARGEST_FILE = 1 << 30


class _Head(msgspec.Struct):
    """The fields that tell a results file of Ringside from any other."""

    ringside_version: str
    schema_version: int
    complete: bool = True
    failure: object = None


class RunFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of a run, of collectives or of a scaling series."""

    path: Path
    file: Path
    """Its results file."""
    changed_at: float
    """Unix time of the last change of that file."""
    finished: bool
    """Whether it is complete or has failed."""

    @property
    def is_run(self) -> bool:
        """Return whether it holds a run, not another measurement."""
        return self.file.name == RESULTS_FILE


def list_folders(root: Path) -> list[RunFolder]:
    """Return the folders of runs in a folder, the oldest first.

    Raises:
        OutputError: the folder cannot be read.
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


class OldFolders(NamedTuple):
    """All folders of runs but the newest."""

    to_remove: list[RunFolder]
    may_go_on: list[RunFolder]
    """Unfinished, and changed a short time ago."""


def choose_old(folders: Sequence[RunFolder], *, keep: int, now: float) -> OldFolders:
    """Choose all but the newest; set apart what may go on."""
    old = folders[: max(0, len(folders) - keep)]
    going = [one for one in old if not one.finished and now - one.changed_at <= MAY_GO_ON_SECONDS]
    return OldFolders([one for one in old if one not in going], going)


def remove(folder: RunFolder) -> None:
    """Remove a folder, if it still is that of a run.

    Raises:
        OutputError: it has changed, or it cannot be removed.
    """
    if _read(folder.path) != folder:
        raise OutputError(
            f"{folder.path} has changed and is kept.",
            found="It was no longer what was listed.",
            remedy="Run `compare clean` once more.",
        )
    try:
        shutil.rmtree(folder.path)
    except OSError as error:
        raise OutputError(
            f"{folder.path} could not be removed.",
            found=f"{system_reason(error)}.",
            remedy="Change its permissions, or remove it yourself.",
        ) from None


def old_folders(root: Path, *, keep: int) -> OldFolders:
    """List the folders that ``compare clean`` would remove, or keep for now."""
    return choose_old(list_folders(root), keep=keep, now=time.time())


def _read(path: Path) -> RunFolder | None:
    """Return a folder of a run; None without a results file."""
    for name in OF_RUNS:
        file = path / name
        try:
            if path.is_symlink() or file.is_symlink() or not file.is_file():
                continue
            state = file.stat()
            if state.st_size > _LARGEST_FILE:
                continue
            head = msgspec.json.decode(file.read_bytes(), type=_Head)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError):
            continue
        finished = head.complete or head.failure is not None
        return RunFolder(path=path, file=file, changed_at=state.st_mtime, finished=finished)
    return None

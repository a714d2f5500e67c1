"""Deliver what ranks read to hosts that lack it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from compare.data.catalogue import SHA256, DatasetName, DatasetSource
from compare.data.files import files_in, holds
from compare.data.own import contents, digest


def key_of(source: DatasetSource) -> str:
    """Return the SHA-256 of a data set or an own workload.

    Raises:
        UsageError: the folder of the workload is too large.
    """
    if source.name == "own":
        return digest(contents(Path(source.directory)))
    return hashlib.sha256("".join(SHA256[source.name].values()).encode()).hexdigest()


def is_in(folder: Path, name: DatasetName, key: str) -> bool:
    """Return whether a folder has all of it, undamaged."""
    if name == "own":
        return folder.is_dir() and digest(contents(folder)) == key
    return holds(name, folder)


def files_of(source: DatasetSource) -> dict[str, bytes]:
    """Return the files that a host needs, by their relative paths."""
    folder = Path(source.directory)
    if source.name == "own":
        return contents(folder)
    return {path.name: path.read_bytes() for path in files_in(folder)}

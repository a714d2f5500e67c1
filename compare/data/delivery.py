"""Deliver what ranks read to hosts that lack it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from compare.data.catalogue import SHA256, DatasetName, DatasetSource
from compare.data.files import files_in, holds
from compare.data.own import code_digest, contents, digest, is_small

_BY_CODE = "code-"
"""Prefix of the key of a workload too large to copy."""


def key_of(source: DatasetSource) -> str:
    """Return the SHA-256 of a data set or an own workload.

    A folder that is too large to be copied is known by its Python files alone.
    """
    if not is_copied(source):
        return f"{_BY_CODE}{source.sha256}"
    if source.name == "own":
        return digest(contents(Path(source.directory)))
    return hashlib.sha256("".join(SHA256[source.name].values()).encode()).hexdigest()


def is_copied(source: DatasetSource) -> bool:
    """Return whether hosts that lack it get a copy."""
    return source.name != "own" or is_small(Path(source.directory))


def is_in(folder: Path, name: DatasetName, key: str) -> bool:
    """Return whether a folder has all of it, undamaged."""
    if name != "own":
        return holds(name, folder)
    if key.startswith(_BY_CODE):
        return folder.is_dir() and code_digest(folder) == key.removeprefix(_BY_CODE)
    return folder.is_dir() and is_small(folder) and digest(contents(folder)) == key


def files_of(source: DatasetSource) -> dict[str, bytes]:
    """Return the files that a host needs, by their relative paths."""
    folder = Path(source.directory)
    if source.name == "own":
        return contents(folder)
    return {path.name: path.read_bytes() for path in files_in(folder)}

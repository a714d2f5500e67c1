"""Identify the data that ranks read, and find what to copy to hosts that lack them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from compare.data.catalogue import SHA256, DatasetName, DatasetSource
from compare.data.files import files_in, holds
from compare.data.own import code_digest, contents, digest, is_small

_BY_CODE = "code-"
"""Prefix of the key of a workload that is too large to copy."""


def key_of(source: DatasetSource) -> str:
    """Return the key of a data set or own workload: a SHA-256 that depends on all its files.

    For a folder that is too large to be copied, it is ``code-`` and the SHA-256 over its Python files.
    """
    if not is_copied(source):
        return f"{_BY_CODE}{source.sha256}"
    if source.name == "own":
        return digest(contents(Path(source.directory)))
    return hashlib.sha256("".join(SHA256[source.name].values()).encode()).hexdigest()


def is_copied(source: DatasetSource) -> bool:
    """Return whether hosts that lack the data get a copy: always, except for a large own workload."""
    return source.name != "own" or is_small(Path(source.directory))


def is_in(folder: Path, name: DatasetName, key: str) -> bool:
    """Return whether a folder holds the whole data set or workload that ``key`` identifies, undamaged."""
    if name != "own":
        return holds(name, folder)
    if key.startswith(_BY_CODE):
        return folder.is_dir() and code_digest(folder) == key.removeprefix(_BY_CODE)
    return folder.is_dir() and is_small(folder) and digest(contents(folder)) == key


def files_of(source: DatasetSource) -> dict[str, bytes]:
    """Return the contents of the files that a host needs, by their paths relative to the folder."""
    folder = Path(source.directory)
    if source.name == "own":
        return contents(folder)
    return {path.name: path.read_bytes() for path in files_in(folder)}

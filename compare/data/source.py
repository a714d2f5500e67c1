"""Choose the data set of a run, find or make it, and tell whether another host has the same data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from backends.cache import cache_folder
from compare.data.catalogue import FILES, SHA256, DatasetChoice, DatasetName, DatasetSource
from compare.data.digits import prepare_digits
from compare.data.files import find_file, folder_of, holds
from compare.data.mnist import MnistNotFoundError, fetch_mnist
from compare.data.own import MOST_BYTES, code_digest, contents, digest, size_bytes
from compare.errors import OutputError

_CODE_PREFIX = "code-"
"""Prefix of the key of a workload that is too large to copy."""
_GETTING: dict[DatasetName, str] = {"mnist": "download it", "digits": "make it"}


def default_root() -> Path:
    """Return the folder for data unless the user names another one.

    Raises:
        OutputError: the user has no home folder, and ``XDG_CACHE_HOME`` names no other.
    """
    try:
        return cache_folder() / "data"
    except RuntimeError as error:
        raise OutputError(
            "There is no folder to keep data in.", found=f"{error}", remedy="Name one with --data."
        ) from None


def resolve(
    dataset: DatasetChoice,
    root: Path,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> DatasetSource:
    """Find, download or make the built-in data set that the user chose, and return where it is.

    ``auto`` takes MNIST if the data folder ``root`` holds all of it or a mirror serves it. Otherwise it takes
    the digits, and the note of the returned source states why. Damaged files are always an error.
    ``progress`` is called with one line of text for each event.

    Raises:
        DataError: the data is damaged, locked or cannot be made, or ``mnist`` is chosen and not available.
        OutputError: ``root`` cannot be written, and the data must be written there.
    """
    note = ""
    if dataset != "digits":
        try:
            directory = fetch_mnist(root, progress=progress)
            return DatasetSource(name="mnist", requested=dataset, directory=str(directory))
        except (MnistNotFoundError, OutputError) as error:
            if dataset == "mnist":
                raise
            reason = error.reason if isinstance(error, MnistNotFoundError) else f"{root} cannot be written"
            note = f"MNIST is not available ({reason}): scikit-learn's digits instead"
    return DatasetSource(name="digits", requested=dataset, directory=str(prepare_digits(root)), note=note)


def expect(dataset: DatasetChoice, root: Path) -> DatasetSource:
    """Return the source that ``resolve`` would probably return, without downloading or making anything.

    For ``auto`` it is MNIST, unless the data folder ``root`` holds only the digits. If the data is not in
    ``root`` yet, the note of the source states what a run would do.
    """
    choices: list[DatasetName] = ["mnist", "digits"] if dataset == "auto" else [dataset]
    available = [name for name in choices if holds(name, folder_of(name, root))]
    name, note = (*available, *choices)[0], ""
    if not available:
        otherwise = ", or take scikit-learn's digits if it cannot" if dataset == "auto" else ""
        note = f"It is not there yet: a run would {_GETTING[name]}{otherwise}"
    return DatasetSource(name=name, requested=dataset, directory=str(folder_of(name, root)), note=note)


def key_of(source: DatasetSource) -> str:
    """Return the key by which a host tells whether it has the same data.

    The key is a SHA-256 that depends on all files. For a user's own workload that is too large to be copied,
    it is ``code-`` and the SHA-256 over the Python files of its folder.
    """
    if not is_copied(source):
        return f"{_CODE_PREFIX}{source.sha256}"
    if source.name == "own":
        return digest(contents(Path(source.directory)))
    return hashlib.sha256("".join(SHA256[source.name].values()).encode()).hexdigest()


def is_copied(source: DatasetSource) -> bool:
    """Return whether hosts that lack the data get a copy; a large workload of the user's is not copied."""
    return source.name != "own" or size_bytes(Path(source.directory)) <= MOST_BYTES


def is_in(folder: Path, name: DatasetName, key: str) -> bool:
    """Return whether a folder holds all of the data that ``key`` identifies, undamaged; see `key_of`."""
    if name != "own":
        return holds(name, folder)
    if key.startswith(_CODE_PREFIX):
        return folder.is_dir() and code_digest(folder) == key.removeprefix(_CODE_PREFIX)
    return folder.is_dir() and size_bytes(folder) <= MOST_BYTES and digest(contents(folder)) == key


def files_of(source: DatasetSource) -> dict[str, bytes]:
    """Return the contents of the files that a host needs, by their paths relative to the folder."""
    folder = Path(source.directory)
    if source.name == "own":
        return contents(folder)
    paths = filter(None, (find_file(folder, name) for name in FILES))
    return {path.name: path.read_bytes() for path in paths}

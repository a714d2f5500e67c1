"""Find, verify, read, lock and write the files of a data folder.

They are in IDX, the file format of MNIST. An IDX file starts with two zero bytes, a type code and the number
of dimensions. The dimensions follow as big-endian 32-bit integers, then the elements in C order
(http://yann.lecun.com/exdb/mnist/).
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import shlex
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from compare.data import catalogue
from compare.data.catalogue import (
    CONTENT_BYTES,
    DIGITS_VERSION,
    FILES,
    SPLITS,
    Bytes,
    DatasetName,
    DatasetSource,
    Split,
)
from compare.errors import DataError, OutputError, system_reason
from compare.text import counted

LOCK_SECONDS: Final = 900.0
"""A process waits no longer than this for the lock on a data folder."""

_NO_FLOCK_ERRNOS: Final = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})
_ERRNOS_OF_ABSENCE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
_GZIP_MAGIC: Final = b"\x1f\x8b"
_UINT8: Final = 0x08


class FileStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a data set, as ``ringside setup data --check`` shows it."""

    dataset: DatasetName
    name: str
    """Name of the file without ``.gz``."""
    path: str
    """Path of the file that was found, or of the uncompressed file if neither form is there."""
    form: Literal["plain", "gz", "missing"]
    size_bytes: int = 0
    """Size of the file as it is stored; 0 if it is missing."""
    verified: bool = False
    """Whether the file's uncompressed content has the right SHA-256."""
    problem: str = ""
    """What is wrong with the file, or why the system cannot look for it; empty if it is only missing."""


def folder_of(dataset: DatasetName, root: Path) -> Path:
    """Return the folder of a data set below the data folder ``root``; MNIST is where torchvision puts it."""
    return root / "MNIST" / "raw" if dataset == "mnist" else root / "digits" / DIGITS_VERSION


def fetch_command(root: Path) -> str:
    """Return the command that downloads MNIST into the data folder ``root``, in backquotes for a message."""
    return f"`ringside setup data --data {shlex.quote(str(root))}`"


def status(root: Path) -> tuple[FileStatus, ...]:
    """Return the state of every data file under the data folder ``root``, without changing any.

    The four files of MNIST come first, then those of the digits if their folder exists.
    """
    files = examine("mnist", folder_of("mnist", root))
    digits = folder_of("digits", root)
    return (*files, *examine("digits", digits)) if os.path.isdir(digits) else files  # noqa: PTH112 -- never raises


def holds(dataset: DatasetName, directory: Path) -> bool:
    """Return whether a folder holds every file of a data set with the right content."""
    return all(file.verified for file in examine(dataset, directory))


def find_file(directory: Path, name: str) -> Path | None:
    """Return the path of a data file in a folder: the plain file, else the compressed one, else None.

    The plain file comes first because it loads four times as fast.
    """
    for path in (directory / name, directory / f"{name}.gz"):
        if os.path.lexists(path):  # a dangling link is damage; it does not count as missing
            return path
    return None


def examine(dataset: DatasetName, directory: Path) -> tuple[FileStatus, ...]:
    """Verify the files of a data set in a folder, and return the state of all four, missing ones included."""
    return tuple(_examine_file(dataset, directory, name) for name in FILES)


def _examine_file(dataset: DatasetName, directory: Path, name: str) -> FileStatus:
    path = find_file(directory, name)
    if path is None:
        path = directory / name
        return FileStatus(
            dataset=dataset, name=name, path=str(path), form="missing", problem=_why_unseen(path)
        )
    problem, size_bytes = "", 0
    try:
        read_content(dataset, name, path)
    except DataError as error:
        problem = error.found
    with suppress(OSError):  # a dangling link has no size
        size_bytes = path.stat().st_size
    return FileStatus(
        dataset=dataset,
        name=name,
        path=str(path),
        form="gz" if path.suffix == ".gz" else "plain",
        size_bytes=size_bytes,
        verified=not problem,
        problem=problem,
    )


def _why_unseen(path: Path) -> str:
    """Return a clause for why the system refuses to look for a file; empty if it is only missing."""
    try:
        path.lstat()
    except OSError as error:
        return "" if error.errno in _ERRNOS_OF_ABSENCE else f"cannot be looked for: {system_reason(error)}"
    return ""


def read_content(dataset: DatasetName, name: str, path: Path) -> bytes:
    """Return the uncompressed content of a plain or compressed file, whose SHA-256 was verified.

    ``name`` is the name that the file has in the data set, without ``.gz``.

    Raises:
        DataError: the file cannot be read, or its content is wrong.
    """
    most_bytes = CONTENT_BYTES[name] + 1  # because a small compressed file may expand without end
    try:
        with path.open("rb") as file:
            compressed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            file.seek(0)
            content = gzip.GzipFile(fileobj=file).read(most_bytes) if compressed else file.read(most_bytes)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _unusable(path, f"Its gzip stream is truncated or damaged: {error}.") from error
    except OSError as error:
        raise _unusable(path, f"It cannot be read: {system_reason(error)}.") from error
    expected, sha256 = catalogue.SHA256[dataset][name], hashlib.sha256(content).hexdigest()
    if sha256 != expected:
        raise _unusable(path, f"Its content has SHA-256 {sha256}; for {dataset} it must be {expected}.")
    return content


def load_split(source: DatasetSource, split: Split) -> tuple[Bytes, Bytes]:
    """Read and verify the training set or the test set of a built-in data set.

    Returns:
        The images, shape (n, 28, 28), and the labels, shape (n,), as new writable arrays of unsigned bytes.
        Pixels go from 0 (paper) to 255 (ink), labels from 0 to 9.

    Raises:
        DataError: a file is missing or damaged, or belongs to another data set.
    """
    images, labels = (_load_file(source, name) for name in SPLITS[split])
    return images, labels


def _load_file(source: DatasetSource, name: str) -> Bytes:
    import numpy as np

    directory = Path(source.directory)
    path = find_file(directory, name)
    if path is None:
        raise DataError(
            f"{name} is not in {directory}.",
            found="Neither the plain file nor the one with .gz is there.",
            remedy=replace_remedy(directory, []),
        )
    content = read_content(source.name, name, path)
    dimensions = content[3]
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    # A copy, because an array over bytes cannot be written.
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy()


def encode(array: Bytes) -> bytes:
    """Return the content of the IDX file for an array of unsigned bytes."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, _UINT8, array.ndim, *array.shape) + array.tobytes()


def _unusable(path: Path, found: str) -> DataError:
    return DataError(f"{path} cannot be used.", found=found, remedy=replace_remedy(path.parent, [str(path)]))


def refuse_damaged(files: Sequence[FileStatus], directory: Path) -> None:
    """Require that no file of a folder has a problem.

    A damaged file may be the user's only copy, so Ringside never replaces it.

    Raises:
        DataError: a file has a problem; the error names all such files and the commands that replace them.
    """
    damaged = [file for file in files if file.problem]
    if damaged:
        raise DataError(
            f"{counted(len(damaged), 'file')} in {directory} cannot be used. Nothing was overwritten.",
            found="\n".join(f"{file.path} ({file.size_bytes:,} bytes): {file.problem}" for file in damaged),
            remedy="Correct the folder's path or permissions, or name another folder with --data."
            if all(_why_unseen(Path(file.path)) for file in damaged)
            else replace_remedy(directory, [file.path for file in damaged]),
        )


def replace_remedy(directory: Path, paths: Sequence[str]) -> str:
    """Return the remedy: remove MNIST's files ``paths``, or any other data's folder, and write them anew."""
    root = directory.parent.parent
    if directory != folder_of("mnist", root):  # the digits, or a copy that Ringside sent to this host
        return f"Run `rm -r {shlex.quote(str(directory))}`; the next run writes it again."
    remove = f"`rm {' '.join(shlex.quote(path) for path in paths)}`, then " if paths else ""
    return f"Run {remove}{fetch_command(root)}."


@contextmanager
def writing(directory: Path, tell: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Make a data folder, and hold its lock during the block, so that only one process writes into it.

    If another process holds the lock, ``tell`` is called with a message before waiting. The lock file stays,
    because another process may have opened it already. On network file systems without locks, two processes
    may both download. That does no harm, because each file is verified before it gets its name.

    Raises:
        DataError: another process kept the lock for longer than ``LOCK_SECONDS``.
        OutputError: the folder cannot be made or written; any ``OSError`` of the block becomes this error.
    """
    import filelock

    lock = filelock.FileLock(directory / ".ringside.lock")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            with suppress(filelock.Timeout):
                lock.acquire(timeout=0)
            if not lock.is_locked:
                tell(f"Waiting for another process that writes to {directory}")
                lock.acquire(timeout=LOCK_SECONDS)
        except (OSError, NotImplementedError) as error:
            if getattr(error, "errno", errno.ENOSYS) not in _NO_FLOCK_ERRNOS:
                raise
        yield
    except filelock.Timeout as error:
        raise DataError(
            f"Another process has kept the lock on {directory} for {LOCK_SECONDS:g} s.",
            found=f"The lock is the file {lock.lock_file}.",
            remedy=f"Find the process with `fuser -v {shlex.quote(lock.lock_file)}` and end it.",
        ) from error
    except OSError as error:
        raise OutputError(
            f"{directory} cannot be written.",
            found=f"{system_reason(error)}{f': {error.filename}' if error.filename else ''}.",
            remedy="Check the free space and the permissions there, or name another folder with --data.",
        ) from error
    finally:
        lock.release()

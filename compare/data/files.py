"""What lies on the disk: which files, plain or compressed, good or damaged. Nothing here writes."""

from __future__ import annotations

import gzip
import hashlib
import os
import shlex
import zlib
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Final, Literal

import msgspec

from compare.data import catalogue
from compare.data.catalogue import DIGITS_VERSION, FILES, DatasetName
from compare.errors import DataError, system_reason
from compare.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_CHUNK_BYTES: Final = 1 << 20
_GZIP_MAGIC: Final = b"\x1f\x8b"


class FileStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a data set, as ``compare data status`` shows it.

    Attributes:
        dataset: the data set the file belongs to.
        name: its name without ``.gz``.
        path: the file that is there, or the one that should be.
        form: what is there.
        size_bytes: on the disk, compressed or not; 0 when missing.
        verified: whether the uncompressed content has the expected SHA-256.
        problem: empty, or what is wrong with a file that is there.
    """

    dataset: DatasetName
    name: str
    path: str
    form: Literal["plain", "gz", "missing"]
    size_bytes: int = 0
    verified: bool = False
    problem: str = ""


def status(root: Path) -> tuple[FileStatus, ...]:
    """Examine the data under ``root`` without changing anything.

    Returns:
        MNIST's four files, there or not; then the four of ``digits``, if its folder is there.
    """
    digits = digits_directory(root)
    found = examine("mnist", mnist_directory(root))
    return (*found, *examine("digits", digits)) if digits.is_dir() else found


def holds(dataset: DatasetName, directory: Path) -> bool:
    """Whether a folder holds a data set, whole and every byte as it should be."""
    return all(file.verified for file in examine(dataset, directory))


def files_in(directory: Path) -> list[Path]:
    """Return the files of the data set in a folder, as they lie there: plain or compressed."""
    return [path for path in (find(directory, name) for name in FILES) if path]


def mnist_directory(root: Path) -> Path:
    """Where MNIST lies: as torchvision has it."""
    return root / "MNIST" / "raw"


def digits_directory(root: Path) -> Path:
    """Where the digits lie: another recipe lies in another folder."""
    return root / "digits" / DIGITS_VERSION


def fetch_command(root: Path) -> str:
    """The command line that brings MNIST into a data folder, for messages."""
    return f"`compare data fetch --data-dir {shlex.quote(str(root))}`"


def examine(dataset: DatasetName, directory: Path) -> tuple[FileStatus, ...]:
    """Say of every file of a data set whether it is in a folder, and good."""
    return tuple(_examine_file(dataset, directory, name) for name in FILES)


def _examine_file(dataset: DatasetName, directory: Path, name: str) -> FileStatus:
    path = find(directory, name)
    if path is None:
        return FileStatus(dataset=dataset, name=name, path=str(directory / name), form="missing")
    problem = ""
    size_bytes = 0
    try:
        size_bytes = path.stat().st_size
        content_bytes, sha256 = _content_digest(path)
        if sha256 != catalogue.SHA256[dataset][name]:
            problem = _mismatch(content_bytes, sha256, dataset, name)
    except DataError as error:
        problem = error.found
    except OSError as error:
        problem = f"It cannot be read: {system_reason(error)}."
    return FileStatus(
        dataset=dataset,
        name=name,
        path=str(path),
        form="gz" if path.suffix == ".gz" else "plain",
        size_bytes=size_bytes,
        verified=not problem,
        problem=problem,
    )


def find(directory: Path, name: str) -> Path | None:
    """The plain file, which loads in a third of the time, else the compressed one, else None."""
    for path in (directory / name, directory / f"{name}.gz"):
        # lexists: a dangling link or an unreadable file is there, and wrong; it is not missing.
        if os.path.lexists(path):
            return path
    return None


def refuse_damaged(files: Sequence[FileStatus], directory: Path) -> None:
    """Stop where a file is there and not good: it is somebody's, and is not replaced.

    Raises:
        DataError: names every such file, and what brings good ones.
    """
    damaged = [file for file in files if file.problem]
    if not damaged:
        return
    raise DataError(
        f"{counted(len(damaged), 'file')} in {directory} cannot be used and nothing was overwritten",
        found="\n".join(f"{file.path} ({file.size_bytes:,} bytes): {file.problem}" for file in damaged),
        remedy=replace_remedy(directory, [file.path for file in damaged]),
    )


def replace_remedy(directory: Path, paths: Sequence[str]) -> str:
    """How to get good files where damaged or missing ones are; ``paths`` are those to remove first."""
    if directory == digits_directory(directory.parent.parent):
        return f"Run `rm -r {shlex.quote(str(directory))}`; the next run makes it anew."
    remove = f"`rm {' '.join(shlex.quote(path) for path in paths)}`, then " if paths else ""
    if directory == mnist_directory(directory.parent.parent):
        return f"Run {remove}{fetch_command(directory.parent.parent)}."
    return f"Run {remove}copy the original there." if paths else "Copy the original there."


def _mismatch(content_bytes: int, sha256: str, dataset: str, name: str) -> str:
    return (
        f"Its content is {content_bytes:,} bytes with SHA-256 {sha256}; "
        f"that of {dataset} has SHA-256 {catalogue.SHA256[dataset][name]}."
    )


def _content_digest(path: Path) -> tuple[int, str]:
    """Length in bytes and SHA-256 of a file's uncompressed content; no NumPy, the parent calls this."""
    digest = hashlib.sha256()
    size_bytes = 0
    with open_content(path) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            size_bytes += len(chunk)
    return size_bytes, digest.hexdigest()


@contextmanager
def open_content(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open ``path`` for its uncompressed content, whatever its name says; every failure is a DataError."""
    try:
        with path.open("rb") as file:
            compressed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            file.seek(0)
            if compressed:
                with gzip.GzipFile(fileobj=file) as stream:
                    yield stream
            else:
                yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise unusable(path, f"Its gzip stream is truncated or damaged: {error}.") from error
    except OSError as error:
        raise unusable(path, f"It cannot be read: {system_reason(error)}.") from error


def unusable(path: Path, found: str) -> DataError:
    """The error for one file in a data folder, with what brings a good one."""
    return DataError(f"{path} cannot be used", found=found, remedy=replace_remedy(path.parent, [str(path)]))

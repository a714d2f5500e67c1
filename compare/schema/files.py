"""Read and write files whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from compare.errors import OutputError, UsageError, system_reason

if TYPE_CHECKING:
    from collections.abc import Iterator


T = TypeVar("T")


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON so that a reader sees the old file or the new one, never half of it.

    Raises:
        OutputError: the folder is gone, read-only or full.
    """
    _replace(path, msgspec.json.format(msgspec.json.encode(value), indent=1))


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that nobody but its owner can ever read.

    Raises:
        OutputError: it is there already, or the folder takes no more writing.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
    except OSError as error:
        raise OutputError(f"{path} could not be written.", found=system_reason(error)) from None


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Make a folder for what nobody needs afterwards, and remove it then.

    Raises:
        OutputError: it cannot be made.
    """
    folder = make_temporary_folder(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_temporary_folder(prefix: str, parent: Path | None = None) -> Path:
    """Make a folder under ``parent``, or wherever temporary files go; it stays.

    Raises:
        OutputError: it cannot be made.
    """
    with _told_of_no_room():
        return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))


@contextmanager
def _told_of_no_room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            "Nothing temporary can be written.",
            found=": ".join(str(part) for part in (error.filename, error.strerror or error) if part),
            remedy="Free some space there, or name another folder in TMPDIR.",
        ) from None


def write_text(path: Path, text: str) -> None:
    """Write text, whole or not at all.

    Raises:
        OutputError: the folder is gone, read-only or full.
    """
    _replace(path, text.encode())


def _replace(path: Path, data: bytes) -> None:
    try:
        if path.exists() and not path.is_file():
            # /dev/stdout, say: a file renamed over it would take it from everybody.
            path.write_bytes(data)
            return
        target = path.resolve()
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                os.fchmod(file.fileno(), _permissions())
                file.write(data)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)  # an interrupt may come after it was renamed
            raise
    except OSError as error:
        raise OutputError(
            f"{path} could not be written.",
            found=system_reason(error),
            remedy="Free some space or choose another folder with --output.",
        ) from None


def _permissions() -> int:
    """Return what the umask leaves to a new file; mkstemp would keep it from everybody else."""
    umask = os.umask(0o077)
    os.umask(umask)
    return 0o666 & ~umask


def read_json(path: Path, kind: type[T]) -> T:
    """Read a value that ``write_json`` wrote.

    Raises:
        OutputError: the file is missing, unreadable, or not of this schema.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise OutputError(f"{path} could not be read.", found=system_reason(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, UsageError) as error:
        raise OutputError(
            f"{path} is not a file that this version of Ringside understands.",
            found=str(error),
            remedy="Was it cut short, or written by another version?",
        ) from None

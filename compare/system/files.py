"""Read and write files whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import select
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from compare.errors import OutputError, UsageError, system_reason
from compare.system.limits import memory_left_bytes

T = TypeVar("T")
_PIPE_SECONDS = 10.0
"""Maximum time for a program to write to a pipe."""
_MEMORY_PER_BYTE = 20
"""Memory for a byte of JSON, read.

Samples take a third of this. Nested empty lists take all of it.
"""
LARGEST = 10**18
"""Largest whole number in a file of ours.

As nanoseconds it is 31 years, as bytes an exabyte.
"""
_MAY_BE_LARGER = re.compile(rb"\d{19}")
STANDARD_OUTPUT = Path("-")
"""Standard output, as a user writes it in place of a file."""


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all.

    A reader sees the old file or the new one.

    Raises:
        OutputError: the folder is missing, read-only or full.
    """
    if path == STANDARD_OUTPUT:
        write_text(path, json_text(value))
    else:
        write_bytes(path, _json(value))


def json_text(value: Any) -> str:
    """Write a value as JSON in which no character steers a terminal.

    JSON itself escapes control characters below 32 alone.
    """
    text = _json(value).decode()
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return re.sub("(....)", r"\\u\1", character.encode("utf-16-be").hex())


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1)


def temporary_root() -> Path:
    """Return the folder for temporary files.

    Raises:
        OutputError: none can be written.
    """
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise OutputError(
            "Temporary files cannot be written.",
            found=error.strerror or str(error),
            remedy="Free some space there, or name another folder in TMPDIR.",
        ) from None


def executable_root() -> Path:
    """Return a folder for temporary programs.

    It is that for temporary files, or another one if that is mounted noexec.

    Raises:
        OutputError: no folder that can be written lets a program be executed.
    """
    usual = (str(temporary_root()), "/tmp", "/var/tmp", "/dev/shm", "~/.cache")  # noqa: S108 -- names differ
    # A user without a home keeps the tilde, where pathlib would raise.
    folders = list(dict.fromkeys(Path(os.path.expanduser(name)) for name in usual))  # noqa: PTH111
    for folder in folders:
        if os.access(folder, os.W_OK | os.X_OK) and not os.statvfs(folder).f_flag & os.ST_NOEXEC:
            return folder
    raise OutputError(
        "No folder for temporary programs lets them be executed.",
        found=f"Each of {', '.join(map(str, folders))} is mounted noexec, is read-only or is missing.",
        remedy="Name a folder in TMPDIR whose file system is not mounted noexec.",
    )


def write_text(path: Path, text: str) -> None:
    """Write text, whole or not at all.

    Raises:
        OutputError: the folder is missing, read-only or full.
    """
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes, whole or not at all.

    Raises:
        OutputError: the folder is missing, read-only or full.
    """
    if path == STANDARD_OUTPUT:
        sys.stdout.write(data.decode().removesuffix("\n") + "\n")
        sys.stdout.flush()  # whole, before a table follows on standard error: a pod's log has both
        return
    try:
        if path.exists() and not path.is_file():
            # For example /dev/stdout: a file renamed over it would replace it for the whole machine.
            path.write_bytes(data)
            return
        target = Path(os.path.realpath(path))  # ``Path.resolve`` raises a RuntimeError in a loop of links
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                os.fchmod(file.fileno(), _permissions())
                file.write(data)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)  # an interrupt may come after the rename
            raise
    except OSError as error:
        raise OutputError.unwritten(path, error) from None


def _permissions() -> int:
    """Return the permissions of a new file; those of mkstemp are private."""
    umask = os.umask(0o077)
    os.umask(umask)
    return 0o666 & ~umask


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Read a file, or a pipe that a program writes.

    ``most`` limits the number of bytes.

    Raises:
        OSError: it cannot be read, is a device, or nothing writes to the pipe.
    """
    # Without O_NONBLOCK, a named pipe without a writer would wait for ever.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISFIFO(mode):
            if not select.select([file], [], [], _PIPE_SECONDS)[0]:
                raise TimeoutError(errno.ETIMEDOUT, "Nothing was written to this pipe", str(path))
            os.set_blocking(file.fileno(), True)
        elif not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "It is neither a file nor a pipe", str(path))
        return file.read(-1 if most is None else most)


def read_json(path: Path, kind: type[T], *, adapt: Callable[[Any], Any] | None = None) -> T:
    """Read a value that ``write_json`` wrote.

    ``adapt`` changes the JSON of an older version before it is converted.

    Raises:
        OutputError: the file is missing, unreadable, or not of this schema.
    """
    try:
        _require_memory(path)
        data = read_bytes(path)
        if _MAY_BE_LARGER.search(data):
            _require_numbers(msgspec.json.decode(data))
        if adapt:
            return msgspec.convert(adapt(msgspec.json.decode(data)), type=kind)
        return msgspec.json.decode(data, type=kind)
    except OSError as error:
        raise OutputError(
            f"{path} could not be read.",
            found=system_reason(error),
            remedy="Name a run's folder or its results.json, and check its permissions.",
        ) from None
    except MemoryError:
        size, left = path.stat().st_size / 1e9, memory_left_bytes() / 1e9
        raise OutputError(
            f"{path} is too large to be read here.",
            found=f"It has {size:.1f} GB, and may need twenty times that in memory. {left:.1f} GB are free.",
            remedy="Read it on a machine with more memory, or raise the limit (`ulimit -v`).",
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, UsageError, RecursionError, OverflowError) as error:
        raise OutputError(
            f"{path} is not a file of this version of Ringside.",
            found=str(error),
            remedy="Was it edited, cut short, or written by another version?",
        ) from None


def _require_numbers(content: Any) -> None:
    """Require that no whole number is larger than any machine could count.

    Raises:
        OverflowError: one is; arithmetic with it would fail.
    """
    left = [content]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
        elif isinstance(value, int) and abs(value) > LARGEST:
            raise OverflowError(f"It holds a whole number of {len(str(abs(value)))} digits.")


def _require_memory(path: Path) -> None:
    """Require the memory for the content of a file.

    Raises:
        MemoryError: a machine that reads it all the same might kill other programs.
    """
    if path.is_file() and path.stat().st_size * _MEMORY_PER_BYTE > memory_left_bytes():
        raise MemoryError

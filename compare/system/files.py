"""Read and write files whole or not at all, and read the end of logs."""

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
"""Maximum time to wait until a program begins to write to a pipe."""
_MEMORY_PER_BYTE = 20
"""Number of bytes of memory that may be needed to read one byte of JSON.

Lists of samples need a third of this, and nested empty lists need all of it.
"""
_NEGLIGIBLE_BYTES = 1 << 24
"""Memory that is assumed to be there.

A run reads thousands of small files, and a look at the memory takes 1 ms.
"""
LARGEST = 10**18
"""The largest whole number that a file of Ringside may hold: 31 years in nanoseconds, or an exabyte."""
_LONG_NUMBER = b" " + b"0" * 19
"""What a whole number of 19 digits or more begins with, after ``_SHAPE`` was applied to JSON."""
_SHAPE = bytes.maketrans(b"0123456789\n\t\r,:[-", b"0" * 10 + b" " * 7)
_PIECE_BYTES = 1 << 20
_TAIL_BYTES = 1 << 20
_MOST_INDENTED_BYTES = 8 << 20
"""Maximum size of JSON that is indented; indenting adds half as much."""
STANDARD_OUTPUT = Path("-")
"""The path that a user writes to mean standard output."""


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON into a file, or to standard output for ``-``.

    The file is written whole or not at all, so a reader sees the old file or the new one.

    Raises:
        OutputError: the file cannot be written, for example because its folder is missing, read-only or full.
    """
    if path == STANDARD_OUTPUT:
        write_text(path, json_text(value))
    else:
        write_bytes(path, _json(value))


def json_text(value: Any) -> str:
    """Return a value as JSON in which all characters that cannot be printed are escaped.

    So the text cannot control a terminal. JSON itself requires this only for control characters below 32.
    """
    text = _json(value).decode()
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return re.sub("(....)", r"\\u\1", character.encode("utf-16-be").hex())


def _json(value: Any) -> bytes:
    data = msgspec.json.encode(value)
    return msgspec.json.format(data, indent=1) if len(data) <= _MOST_INDENTED_BYTES else data


def temporary_root() -> Path:
    """Return the folder for temporary files, as Python's ``tempfile`` chooses it.

    Raises:
        OutputError: no folder for temporary files can be written.
    """
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise OutputError(
            "Temporary files cannot be written.",
            found=f"{error.strerror or error}.",
            remedy="Free some space in one of these folders, or set TMPDIR to another folder.",
        ) from None


def executable_root() -> Path:
    """Return a folder in which temporary programs can be written and executed.

    It is the folder for temporary files, or another folder if that one is mounted noexec.

    Raises:
        OutputError: none of the usual folders can be used.
    """
    usual = (str(temporary_root()), "/tmp", "/var/tmp", "/dev/shm", "~/.cache")  # noqa: S108 -- names differ
    # A user without a home keeps the tilde, where pathlib would raise.
    folders = list(dict.fromkeys(Path(os.path.expanduser(name)) for name in usual))  # noqa: PTH111
    for folder in folders:
        if os.access(folder, os.W_OK | os.X_OK) and not os.statvfs(folder).f_flag & os.ST_NOEXEC:
            return folder
    raise OutputError(
        "There is no folder in which temporary programs can be executed.",
        found=f"Each of {', '.join(map(str, folders))} is mounted noexec, is read-only or is missing.",
        remedy="Set TMPDIR to a folder that you can write and whose file system is not mounted noexec.",
    )


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8 into a file, whole or not at all, or to standard output for ``-``.

    Raises:
        OutputError: the file cannot be written.
    """
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes into a file, whole or not at all, or to standard output for ``-``.

    A device or pipe is written directly. Standard output takes only UTF-8, and gets one newline at the end.

    Raises:
        OutputError: the file cannot be written, for example because its folder is missing, read-only or full.
    """
    if path == STANDARD_OUTPUT:
        sys.stdout.write(data.decode().removesuffix("\n") + "\n")
        sys.stdout.flush()  # before a table follows on standard error, because a pod's log mixes both
        return
    try:
        if path.exists() and not path.is_file():
            # A file renamed over /dev/stdout, for example, would replace it for the whole machine.
            path.write_bytes(data)
            return
        target = Path(os.path.realpath(path))  # ``Path.resolve`` raises a RuntimeError in a loop of links
        temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
        try:
            temporary.write_bytes(data)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)  # an interrupt may come after the rename
            raise
    except OSError as error:
        raise OutputError.unwritten(path, error) from None


def read_bytes(path: Path, max_bytes: int | None = None) -> bytes:
    """Return the content of a file, or of a pipe to which a program writes.

    At most ``max_bytes`` are read, or everything if it is None.

    Raises:
        OSError: the path cannot be read, is a folder or device, or is a pipe to which nothing is written.
    """
    # Without O_NONBLOCK, opening a named pipe without a writer would wait for ever.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISFIFO(mode):
            if not select.select([file], [], [], _PIPE_SECONDS)[0]:
                raise TimeoutError(errno.ETIMEDOUT, "Nothing was written to this pipe", str(path))
            os.set_blocking(file.fileno(), True)
        elif not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "It is neither a file nor a pipe", str(path))
        return file.read(-1 if max_bytes is None else max_bytes)


def read_json(path: Path, kind: type[T], *, adapt: Callable[[bytes], bytes | msgspec.Raw] | None = None) -> T:
    """Read a file that ``write_json`` wrote, and return its value of the type ``kind``.

    ``adapt`` gets the JSON, and returns the JSON that is decoded, for files of older versions.

    Raises:
        OutputError: the file is missing, unreadable, too large for the memory, or not JSON of this type.
    """
    try:
        _require_memory(path)
        data = read_bytes(path)
        if _has_long_number(data):
            _require_numbers(msgspec.json.decode(data))
        return msgspec.json.decode(adapt(data) if adapt else data, type=kind)
    except OSError as error:
        raise OutputError(
            f"{path} could not be read.",
            found=f"{system_reason(error)}.",
            remedy="Check that it is a file, or the folder of a run, and that you may read it.",
        ) from None
    except MemoryError:
        size, free = path.stat().st_size / 1e9, memory_left_bytes() / 1e9
        raise OutputError(
            f"{path} is too large to be read here.",
            found=f"It has {size:.1f} GB, and may need twenty times as much memory. {free:.1f} GB are free.",
            remedy="Read it on a machine with more memory, or raise the limit (`ulimit -v`).",
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, UsageError, RecursionError, OverflowError) as error:
        raise OutputError(
            f"{path} is not a file that this version of Ringside can read.",
            found=str(error),
            remedy="Restore it if it was edited or cut short, or read it with the version that wrote it.",
        ) from None


def _has_long_number(data: bytes) -> bool:
    """Return whether JSON may hold a whole number of 19 digits or more; decimals and hashes do not count.

    It is searched piece by piece, so that a large file is not copied as a whole.
    """
    length = _PIECE_BYTES + len(_LONG_NUMBER)
    pieces = (data[start : start + length] for start in range(0, len(data), _PIECE_BYTES))
    return any(_LONG_NUMBER in piece.translate(_SHAPE) for piece in pieces)


def _require_numbers(content: Any) -> None:
    """Require that no whole number in decoded JSON exceeds ``LARGEST``, because arithmetic could fail.

    Raises:
        OverflowError: a number is larger, or is below ``-LARGEST``.
    """
    unchecked = [content]
    while unchecked:
        value = unchecked.pop()
        if isinstance(value, dict):
            unchecked += value.values()
        elif isinstance(value, list):
            unchecked += value
        elif isinstance(value, int) and abs(value) > LARGEST:
            raise OverflowError(
                f"It holds a whole number of {len(str(abs(value)))} digits, which is too large."
            )


def _require_memory(path: Path) -> None:
    """Require that enough memory is free for the decoded content of a file.

    Otherwise the machine might kill other programs while the file is read.

    Raises:
        MemoryError: too little memory is free.
    """
    needed = path.stat().st_size * _MEMORY_PER_BYTE if path.is_file() else 0
    if needed > _NEGLIGIBLE_BYTES and needed > memory_left_bytes():
        raise MemoryError


def tail(path: Path, lines: int = 8) -> str:
    """Return the last ``lines`` lines of a file; empty if it cannot be read.

    Only the last MiB is read, because a rank may have written gigabytes.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            end = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(end.strip().splitlines()[-lines:])

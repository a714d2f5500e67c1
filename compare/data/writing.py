"""Writing into a data folder: failures told in words, and one process at a time."""

from __future__ import annotations

import errno
import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from compare.errors import DataError, OutputError, system_reason

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from compare.data.catalogue import Progress

LOCK_SECONDS: Final = 900.0
# Where flock is not offered at all (some network and FUSE file systems).
_NO_FLOCK_ERRNOS: Final = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Turn every failure to write in here into words.

    Raises:
        OutputError: the folder cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{directory} cannot be written",
            found=f"{system_reason(error)}{f': {error.filename}' if error.filename else ''}.",
            remedy="Name a folder that can be written with --data-dir, or make room or rights there.",
        ) from error


@contextmanager
def locked(directory: Path, tell: Progress = lambda _: None) -> Iterator[None]:
    """Hold this folder's lock, waiting for whoever holds it; the file is left, as unlinking would race.

    Where the file system has no locks we go on without: every file gets its final name by an atomic
    rename after it was verified, so two writers at once waste traffic and nothing else.
    """
    import filelock

    lock = filelock.FileLock(directory / ".ringside.lock")
    try:
        with writing(directory):
            _acquire(lock, directory, tell)
    except NotImplementedError:
        pass
    except OutputError as error:
        if getattr(error.__cause__, "errno", None) not in _NO_FLOCK_ERRNOS:
            raise
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: Any, directory: Path, tell: Progress) -> None:  # filelock stays lazy
    import filelock

    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        tell(f"Waiting for another process that writes into {directory}")
        try:
            lock.acquire(timeout=LOCK_SECONDS)
        except filelock.Timeout as error:
            raise DataError(
                f"Another process has kept the lock on {directory} for {LOCK_SECONDS:g} s",
                found=f"The lock is {lock.lock_file}.",
                remedy=f"Find its holder with `fuser -v {shlex.quote(lock.lock_file)}` and end it.",
            ) from error

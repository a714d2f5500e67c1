"""Run the commands of an installation, print their progress, and log their output."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import filelock
from rich.console import Console

from backends.cache import cache_folder
from compare.errors import UnavailableError
from compare.text import duration

_SHOWN_LINES = 6
_LONGEST_ERROR_LINE = 300
_LINES_KEPT = 5000

_PERCENT = re.compile(r"^\s*\[\s*(\d{1,3})%\]")
_ERROR = re.compile(
    r"\berror\b[: ]|^CMake Error|fatal|undefined reference|No space left|Could not find", re.IGNORECASE
)
# pip repeats at the end, in several ways, that something failed; the cause is further up.
_ECHO = re.compile(
    r"^-- |subprocess-exited-with-error|Failed (building|to build)|exit status|exit code|"
    r"not a problem with pip|Error \d+$"
)


class Commands:
    """Runs commands that install ``subject``, prints their progress, and writes their output to ``log``."""

    def __init__(self, subject: str, console: Console, log: TextIO) -> None:
        self.subject = subject
        self.console = console
        self.log = log

    def run(self, title: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Run one command to its end; an interrupt kills it with all its processes.

        ``title`` names the command where its progress is printed. Percentages are taken from CMake's output.

        Raises:
            UnavailableError: the command failed; the error has the first error lines and the path of the log.
        """
        self.log.write(f"\n$ {shlex.join(command)}\n")
        output: deque[str] = deque(maxlen=_LINES_KEPT)
        self.console.print(f"  {title} ...")
        started, percent = time.monotonic(), 0
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # to end the compilers with it
        )
        with process, self.console.status(title):
            try:
                for line in process.stdout or ():
                    self.log.write(line)
                    output.append(line.rstrip())
                    # CMake's makefiles print it. It may fall, because jobs overlap and Gloo has its own.
                    match = _PERCENT.match(line)
                    if match and int(match[1]) // 10 > percent // 10:
                        percent = int(match[1])
                        took = duration(time.monotonic() - started)
                        self.console.print(f"  {title}: {percent:3d}%  {took}")
                status = process.wait()
            except BaseException:  # above all an interrupt
                with contextlib.suppress(ProcessLookupError):  # it may have ended meanwhile
                    os.killpg(process.pid, signal.SIGKILL)
                raise
            finally:
                self.log.flush()
        if status != 0:
            raise UnavailableError(
                f"{self.subject} is not available: {title} failed (exit status {status}).",
                found="\n".join(error_lines(output)) or "It printed nothing.",
                remedy=f"Correct the cause, then run this command again. The full log is {self.log.name}.",
            )


@contextlib.contextmanager
def installing(subject: str, folder: Path, console: Console) -> Iterator[Commands]:
    """Hold the lock of a folder in the cache, and yield the ``Commands`` with which the folder can be filled.

    The lock also protects the log, which is beside the folder. If another process holds the lock, this one
    prints a message and waits.

    Raises:
        UnavailableError: an ``OSError`` occurred, most likely because the cache cannot be written.
    """
    lock = filelock.FileLock(folder.with_name(f"{folder.name}.lock"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            console.print("  another process is installing the same; waiting for it")
            lock.acquire()
        with folder.with_name(f"{folder.name}.log").open("a", encoding="utf-8") as log:
            yield Commands(subject, console, log)
    except OSError as error:
        raise UnavailableError(
            f"{subject} was not installed.",
            found=f"{type(error).__name__}: {error}",
            remedy=f"Make {cache_folder()} writable, with some space, or name another in XDG_CACHE_HOME.",
        ) from error
    finally:
        lock.release()


def error_lines(output: Iterable[str]) -> list[str]:
    """Return the first six error lines of a command's output, or its last six lines if none is an error.

    The first errors are chosen because they often cause the later ones.
    """
    lines = [line.strip() for line in output if line.strip()]
    errors = [line for line in lines if _ERROR.search(line) and not _ECHO.search(line)]
    # A longer line is a compiler's command line, and no error.
    errors = [line for line in dict.fromkeys(errors) if len(line) < _LONGEST_ERROR_LINE]
    return errors[:_SHOWN_LINES] or [line[:_LONGEST_ERROR_LINE] for line in lines[-_SHOWN_LINES:]]


def pip(*arguments: str) -> list[str]:
    """Return the command line that runs this environment's pip with ``arguments``."""
    return [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", *arguments]

"""Run the commands of a build, print their progress, and log their output."""

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
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from compare.errors import UnavailableError

if TYPE_CHECKING:
    from rich.console import Console

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
    """Runs commands, prints their progress on ``console``, and writes their output into ``log``."""

    def __init__(self, console: Console, log: TextIO) -> None:
        self.console = console
        self.log = log

    def run(
        self,
        title: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        spent: Mapping[int, float] | None = None,
    ) -> None:
        """Run one command to its end; an interrupt kills it with all its processes.

        ``title`` names the command in its progress. ``spent`` maps a percentage that CMake prints to the
        share of the whole time that has passed by then, from 0 to 1. With ``spent``, each line of progress
        has an estimate of the time left.

        Raises:
            UnavailableError: the command failed; with its first errors and the path of the log.
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
                    found = _PERCENT.match(line)
                    if found and int(found[1]) // 10 > percent // 10:
                        percent = int(found[1])
                        passed = time.monotonic() - started
                        left = _left(passed, percent, spent or {})
                        self.console.print(f"  {title}: {percent:3d}%  {minutes(passed)}{left}")
                status = process.wait()
            except BaseException:  # above all an interrupt
                with contextlib.suppress(ProcessLookupError):  # it may have ended meanwhile
                    os.killpg(process.pid, signal.SIGKILL)
                raise
            finally:
                self.log.flush()
        if status != 0:
            raise UnavailableError(
                f"Horovod is not available: {title} failed (exit status {status}).",
                found="\n".join(error_lines(output)) or "There is no output.",
                remedy=f"Correct the cause, then run this command again. The full log is {self.log.name}.",
            )


def _left(passed: float, percent: int, spent: Mapping[int, float]) -> str:
    share = max((share for known, share in spent.items() if known <= percent), default=0)
    return f", about {minutes(passed / share - passed)} left" if share else ""


def error_lines(output: Iterable[str]) -> list[str]:
    """Return the first six error lines of a command's output, or its last six lines if it has no error.

    The first errors are shown, because they cause the later ones.
    """
    lines = [line.strip() for line in output if line.strip()]
    errors = [line for line in lines if _ERROR.search(line) and not _ECHO.search(line)]
    # A longer line is a compiler's command line, and no error.
    errors = [line for line in dict.fromkeys(errors) if len(line) < _LONGEST_ERROR_LINE]
    return errors[:_SHOWN_LINES] or [line[:_LONGEST_ERROR_LINE] for line in lines[-_SHOWN_LINES:]]


def pip(*arguments: str) -> list[str]:
    """Return the command line that runs this environment's pip with ``arguments``."""
    return [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", *arguments]


def minutes(seconds: float) -> str:
    """Return a duration as minutes and seconds, such as ``2:05``."""
    whole, rest = divmod(round(seconds), 60)
    return f"{whole}:{rest:02d}"

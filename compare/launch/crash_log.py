"""Find the lines that explain a crash in the log of a dead rank, or of its launcher.

Python prints its stacks at a crash, and a library prints an error before it aborts. Lines around these
explain nothing, so they are left out: rules, numbered stacks, the line of code shown with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_DUMP_LINES = 200
"""Maximum number of lines between a crash and its first stack.

The interpreter's state and the traceback of an exception may stand there.
"""
_CRASH = re.compile(
    rf"Fatal Python error[^\n]*(?=\n(?:[^\n]*\n){{0,{_DUMP_LINES}}}?(?:Current thread|Thread) 0x)"
)
"""Python's first line at a crash, before which text without a newline may stand.

A crash that a program only quotes does not match, because no stacks follow it.
"""
_CRASHED_AT = re.compile(
    r'^Current thread 0x[^\n]*:\n  File "(?P<file>[^"]+)", line (?P<line>\d+) in ', re.MULTILINE
)
_LINE_CHARACTERS = 300
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SHOWN_WITH_WARNING = re.compile(r"(:\d+: \w*Warning: [^\n]*)\n(?![ \t]*what\(\): )[ \t]+[^\n]*")
_EXPLAINS_NOTHING = (
    r"[\W_]*",  # nothing, or a rule
    r"=+ ?backtrace\b.*",  # UCX
    r"\d+:? +(/|0x|\S*\.so\b).*",
    r"(frame )?#\d+:? .*(0x[0-9a-f]|\.so\b| from \S+:\d+).*",  # torch, sanitizers
    r"Exception raised from .*\(most recent call first\):",  # torch
    r"(Compile with|For debugging consider) .*",
    r"@ +(0x|\(unknown\)).*",  # glog
    r"\[[^]]*\] \[ *\d+\] .*\[0x[0-9a-f]+\]",  # Open MPI
    r".*\*\*\* (Process received signal|End of error message) \*\*\*",
    r".*\*\*\* +(MPI_ERRORS_ARE_FATAL|and potentially your MPI job)\b.*",
    r"\[[^]]*\] \*\*\* +(reported by process|on a \w+ communicator|Unknown error).*",
    r"\[[^]]*\] (\d+ more process(es)? ha(s|ve) sent help|Set MCA parameter \"orte_base_help).*",
    r".*\bNCCL INFO\b.*",
)


_AFTERMATH = (
    r"^.*failed \(exitcode: ",  # torchrun
    r"^.*Sending process \d+ closing signal",
    r"^.*Received \d+ death signal",
    r"^Process \d+ exit with status code",  # horovodrun
    r"^Primary job +terminated normally",  # Open MPI
    r"^mpirun (detected|noticed) that",
    r"^mpirun: (abort is already in progress|Forwarding signal)",
    r"^.*BAD TERMINATION OF",  # Hydra
    r"^YOUR APPLICATION TERMINATED",
    r"^(\[\d+\]<std\w+>:)?Terminated$",
)
"""Patterns of the lines with which launchers begin to report that a rank is gone."""
_FIRST_LINES, _LAST_LINES = 8, 3
"""How many lines are kept at each end: Open MPI begins with the reason, and a traceback ends with it."""


class CrashLog(NamedTuple):
    """Lines of a log that explain a crash, safe for a terminal; each is empty if it is missing."""

    error: str
    """Python's own line: ``Fatal Python error: Segmentation fault``."""
    printed: str
    """The last line before ``error`` that explains anything."""
    where: str
    """file:line of the Python code that crashed."""


def read_crash_log(log: str) -> CrashLog:
    """Return the lines that explain a crash, given the end of the log of a rank that died."""
    *_, crash = [None, *_CRASH.finditer(log)]
    *_, printed = ["", *_explaining(log[: crash.start()] if crash else log)]
    at = _CRASHED_AT.search(log, crash.end()) if crash else None
    return CrashLog(
        error=_one_line(crash[0]) if crash else "",
        printed=printed,
        where=f"{at['file']}:{at['line']}" if at else "",
    )


def read_launcher_log(log: str) -> list[str]:
    """Return lines of a launcher's log that may explain why a rank ended without printing anything.

    They end where the launcher reports that a rank is gone. Of many lines, the middle is replaced by "…".
    """
    gone = re.search("|".join(_AFTERMATH), log, re.MULTILINE)
    lines = list(_explaining(log[: gone.start()] if gone else log))
    if len(lines) <= _FIRST_LINES + _LAST_LINES:
        return lines
    return [*lines[:_FIRST_LINES], "…", *lines[-_LAST_LINES:]]


def _explaining(printed: str) -> Iterator[str]:
    lines = map(_one_line, _SHOWN_WITH_WARNING.sub(r"\1", printed).splitlines())
    return (line for line in lines if not any(re.fullmatch(p, line) for p in _EXPLAINS_NOTHING))


def _one_line(line: str) -> str:
    return "".join(filter(str.isprintable, _COLOUR.sub("", line))).strip()[:_LINE_CHARACTERS]

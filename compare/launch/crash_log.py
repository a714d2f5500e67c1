"""What the log of a rank that died says of its death: pure.

A crash that Python itself saw ends with its stacks; a library that gives up says why before it does. Around
such words stand others that say nothing: rules, numbered stacks, the line of code shown with a warning.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_DUMP_LINES = 200
"""Most lines between a crash and its first stack: the interpreter's state, and an exception's traceback."""
_CRASH = re.compile(
    rf"Fatal Python error[^\n]*(?=\n(?:[^\n]*\n){{0,{_DUMP_LINES}}}?(?:Current thread|Thread) 0x)"
)
"""Wherever in a line: what was printed before it may lack its newline. A mention has no stacks below it."""
_CRASHED_AT = re.compile(
    r'^Current thread 0x[^\n]*:\n  File "(?P<file>[^"]+)", line (?P<line>\d+) in ', re.MULTILINE
)
_LINE_CHARACTERS = 300
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SHOWN_WITH_WARNING = re.compile(r"(:\d+: \w*Warning: [^\n]*)\n(?![ \t]*what\(\): )[ \t]+[^\n]*")
_SAYS_NOTHING = (
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
    r".*\bNCCL INFO\b.*",
)


class LastWords(NamedTuple):
    """What is known of a death; each is one line that does no harm to a terminal, or empty."""

    crash: str
    """As Python names it: ``Fatal Python error: Segmentation fault``."""
    printed: str
    """What the rank printed last, before that."""
    where: str
    """file:line of Python at which it crashed."""


def find_last_words(log: str) -> LastWords:
    """Read the end of the log of a rank that left neither a result nor an error."""
    *_, crash = [None, *_CRASH.finditer(log)]
    printed = log[: crash.start()] if crash else log
    at = _CRASHED_AT.search(log, crash.end()) if crash else None
    return LastWords(
        crash=_one_line(crash[0]) if crash else "",
        printed=_last_line(printed),
        where=f"{at['file']}:{at['line']}" if at else "",
    )


def _last_line(printed: str) -> str:
    lines = map(_one_line, _SHOWN_WITH_WARNING.sub(r"\1", printed).splitlines())
    *_, last = ["", *filter(_says_something, lines)]
    return last


def _says_something(line: str) -> bool:
    return not any(re.fullmatch(pattern, line) for pattern in _SAYS_NOTHING)


def _one_line(line: str) -> str:
    return "".join(filter(str.isprintable, _COLOUR.sub("", line))).strip()[:_LINE_CHARACTERS]

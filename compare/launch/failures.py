"""Find the root cause of a failed launch in the contents of its files.

Launchers name the victim: the rank whose connection broke, not the one that broke it. The root cause is
the first observed failure, by the time at which the process exited. No other rank can notice it sooner,
because the kernel closes the connections of a process at its exit.

A rank killed from outside is never a victim. One that its launcher ended is the cause of a stall at most.

Errors quote only those lines from the log of a dead rank, or of its launcher, that explain a crash. Python
prints its stacks at a crash, and a library prints an error before it aborts. Lines around these explain
nothing, so they are left out: rules, numbered stacks, the line of code shown with a warning.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from math import inf
from typing import Literal, NamedTuple

from compare.schema.job import Progress, RankExit, RankFailure
from compare.schema.memory import Shortage
from compare.text import listed

_DUMP = re.compile(r"Timeout \([\d:.]+\)!\n(?=(?:Current thread|Thread) 0x)")
"""The line that a rank's watchdog prints above the stacks; text without a newline may precede it."""
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*:$", re.MULTILINE)
_CUT_OFF = re.compile(r"^  \.\.\.$", re.MULTILINE)
"""The line that ends a printed stack of more than a hundred frames."""
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_RAISED_FRAME = re.compile(
    r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE
)
# Code that waits for other ranks.
_WAITING = (
    *("/backends/groups/", "/backends/shared_memory/"),
    *("/torch/distributed/", "/horovod/torch/", "/horovod/common/", "/mpi4py/"),
)
_WAITING_INSIDE = ("/torch/autograd/graph.py", "/torch/nn/parallel/distributed.py")
"""Files whose calls of C code wait for other ranks, as DDP does to agree on its buckets."""
_Stack = list[tuple[str, str]]
"""The frames of a thread, each as (file:line, function), with the innermost first."""
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
_NO_MEMORY = "std::bad_alloc"
"""What a C++ library prints before it aborts because it got no memory."""
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


class Evidence(NamedTuple):
    """What the files of one rank say, with all times converted to the clock of this machine."""

    rank: int
    host: str
    """The name of the rank's host."""
    has_result: bool
    failure: RankFailure | None
    """The exception that the rank raised; None without one."""
    exit: RankExit | None
    """How the rank exited; None if its witness was killed, or never started.

    The witness is the parent process of the rank, which reports its exit.
    """
    started: bool
    """Whether the rank's witness started."""
    log: str
    """The end of what the rank printed."""
    stacks: str
    """The stacks that the rank wrote when it received SIGTERM; empty if it wrote none."""
    progress: Progress | None
    """The rank's latest progress record; None before its first."""

    @property
    def stalled(self) -> bool:
        """Whether the rank's own watchdog ended it."""
        return bool(_DUMP.search(self.log))

    @property
    def ended(self) -> bool:
        """Whether a signal to its witness, or its lease, ended the rank before it failed by itself."""
        if self.stalled:
            return False
        return bool(self.exit.ended_by if self.exit else self.stacks)

    @property
    def stopped(self) -> bool:
        """Whether the rank was stopped (SIGSTOP) during its work, and was still stopped when it exited.

        A stop while a rank waits for its turn does not count, because the agent itself stops it then.
        """
        waits = self.progress is not None and self.progress.stage == "turn"
        return bool(self.exit and self.exit.stopped and not waits)

    @property
    def shortage(self) -> Shortage | None:
        """The limit on memory that the rank has met; None if it failed for another reason.

        A rank that aborted under a limit has met it only if it printed that an allocation failed.
        """
        if self.failure:
            return self.failure.shortage
        if self.exit is None or self.exit.shortage is None:
            return None
        has_met_it = self.exit.signal != signal.SIGABRT or _NO_MEMORY in self.log
        return self.exit.shortage if has_met_it else None

    @property
    def killed(self) -> bool:
        """Whether something outside the launch killed the rank or its witness with SIGKILL."""
        if self.exit is None:
            return self.started and not (self.ended or self.stalled or self.failure)
        return self.exit.signal == signal.SIGKILL and not self.ended


class Cause(NamedTuple):
    """The root cause of a failed launch."""

    rank: int
    host: str
    kind: Literal["raised", "died", "stalled", "deadlocked"]
    """``deadlocked`` if ranks wait for each other; then ``rank`` is one of them."""
    at: float
    """Unix time by this machine's clock at which the rank exited or failed; infinity if unknown."""
    found: str
    """The rank's error, or how the rank exited and what it did last."""
    where: str
    """file:line of the code; empty if unknown."""


def find_cause(evidence: list[Evidence]) -> Cause | None:
    """Return the root cause of a failed launch, given all ranks; None if no rank failed by itself."""
    unfinished = [rank for rank in evidence if not rank.has_result]
    # Launchers notice a killed witness at once. Beside a stall, a missing one was killed afterwards. As
    # horovodrun ends, srun kills the step with a stopped rank in it.
    has_stalled = any(rank.stalled for rank in unfinished)
    if killed := [rank for rank in unfinished if rank.killed and (rank.exit or not has_stalled)]:
        return _cause_of_death(min(killed, key=_exited_at))
    failed = [rank for rank in unfinished if (rank.failure or rank.exit) and not (rank.ended or rank.stalled)]
    causes = [_cause_of_error(e, e.failure) if e.failure else _cause_of_death(e) for e in failed]
    if any(rank.stalled or rank.stopped for rank in unfinished):
        causes.append(_cause_of_stall(unfinished))
    return min(causes, key=lambda cause: cause.at, default=None)


def find_unstarted(evidence: list[Evidence]) -> Evidence | None:
    """Return the only rank that never started, if that explains why others were ended; otherwise None.

    It explains this if every other rank without a result was ended, and there is at least one of them.
    """
    unfinished = [rank for rank in evidence if not rank.has_result]
    unstarted = [rank for rank in unfinished if not rank.started and not rank.failure]
    ended = [rank for rank in unfinished if rank.ended]
    explains = len(unstarted) == 1 and ended and len(ended) + 1 == len(unfinished)
    return unstarted[0] if explains else None


def main_stack(evidence: Evidence) -> _Stack:
    """Return the stack of a rank's main thread, innermost frame first; an empty list if it is unknown.

    Frames of Python's import system are left out. So if a rank waits for the others while it imports MPI, the
    first frame is in the module that imports MPI.
    """
    dump = _DUMP.search(evidence.log)
    for stack in _THREAD.split(evidence.log[dump.end() :] if dump else evidence.stacks)[1:]:
        frames = [
            (f"{m['file']}:{m['line']}", m["function"])
            for m in _FRAME.finditer(stack)
            if not m["file"].startswith("<frozen ")
        ]
        # Only the main thread is ever deep enough to be cut off: in imports.
        if any("compare/worker/__main__.py" in place for place, _ in frames) or _CUT_OFF.search(stack):
            return frames
    return []


def _exited_at(evidence: Evidence) -> float:
    return evidence.exit.time if evidence.exit else inf


def _cause_of_error(evidence: Evidence, failure: RankFailure) -> Cause:
    """Return the cause of a launch whose rank raised an exception, which is its ``failure``."""
    at = evidence.exit.time if evidence.exit else failure.at
    return Cause(evidence.rank, failure.host, "raised", at, failure.message, failure.where)


def _cause_of_death(evidence: Evidence) -> Cause:
    """Return the cause of a launch whose rank exited without raising an exception."""
    crash = read_crash_log(evidence.log)
    how = _describe_exit(evidence.exit)
    printed = f"It last printed: {crash.printed}" if crash.printed else ""
    found = "\n".join(filter(None, [how, crash.error, printed, _describe_progress(evidence)]))
    return Cause(evidence.rank, evidence.host, "died", _exited_at(evidence), found, crash.where)


def _describe_exit(record: RankExit | None) -> str:
    if record is None:
        return "Its witness (the parent process of the rank) was killed, and the rank with it."
    if record.signal is None:
        return f"It exited with status {record.status} and left no result."
    if record.signal == signal.SIGKILL:
        return "It was killed by SIGKILL (kill -9, or out of memory)."
    try:
        name = signal.Signals(record.signal).name
    except ValueError:  # a real-time signal
        name = f"signal {record.signal}"
    return f"It was killed by {name} ({signal.strsignal(record.signal)})."


def _cause_of_stall(unfinished: list[Evidence]) -> Cause:
    """Return the cause of a stall: the rank that most likely held up the others.

    A stopped rank comes first, then one that left no trace, then one that does not wait for another rank. The
    launcher may have ended the last kind, if the watchdog of a waiting rank fired first. Among several such
    ranks, one that its own watchdog ended comes first, because the others may still compute. If all ranks
    wait, the one with the fewest steps comes first. If several have as few, they wait for each other.
    """
    dumped = [e for e in unfinished if e.stalled]
    stopped = [e for e in unfinished if e.stopped]
    silent = [e for e in unfinished if not (e.stalled or e.failure or e.stacks or (e.exit and not e.ended))]
    stacks = {e.rank: main_stack(e) for e in unfinished}
    busy = [e for e in unfinished if stacks[e.rank] and not _waits_for_ranks(stacks[e.rank])]
    at = min((_exited_at(e) for e in dumped or stopped), default=inf)
    hung = [e for e in busy if e.stalled]
    suspect = min(stopped or silent or hung or busy or dumped, key=lambda e: (_steps_done(e), e.rank))
    progress = _describe_progress(suspect)
    if not (stopped or silent or busy):
        waiting_in = {e.rank: stacks[e.rank] or _stack_of_wait(e.failure) for e in unfinished}
        level = [e for e in unfinished if waiting_in[e.rank] and _steps_done(e) == _steps_done(suspect)]
        if len(level) > 1:
            waiting_at: dict[str, list[str]] = {}
            for e in level:
                waiting_at.setdefault(_caller(waiting_in[e.rank]), []).append(f"rank {e.rank} on {e.host}")
            calls = "; ".join(f"{listed(those)} at {place}" for place, those in waiting_at.items())
            return Cause(suspect.rank, suspect.host, "deadlocked", at, f"{progress}\n{calls}", "")
    stack = stacks[suspect.rank]
    found = f"{'It was stopped (SIGSTOP). ' if suspect in stopped else ''}{progress}"
    return Cause(suspect.rank, suspect.host, "stalled", at, found, stack[0][0] if stack else "")


def _waits_for_ranks(stack: _Stack) -> bool:
    if stack and any(mark in stack[0][0] for mark in _WAITING_INSIDE):
        return True
    # The call that waits is among the innermost frames. A device's queue may end in a collective, too.
    return any(
        any(mark in place for mark in _WAITING) or ("/torch/cuda/" in place and function == "synchronize")
        for place, function in stack[:4]
    )


def _stack_of_wait(failure: RankFailure | None) -> _Stack:
    """Return the stack of a rank that raised an exception while it waited for others; otherwise empty."""
    if failure is None:
        return []
    frames = [(f"{m['file']}:{m['line']}", m["function"]) for m in _RAISED_FRAME.finditer(failure.traceback)]
    return frames[::-1] if _waits_for_ranks(frames[::-1]) else []


def _caller(stack: _Stack) -> str:
    """Return where code outside the libraries calls the library that waits, as file:line."""
    outside = (place for place, _ in stack if not any(mark in place for mark in (*_WAITING, "/torch/")))
    return next(outside, stack[0][0])


def _steps_done(evidence: Evidence) -> int:
    """Return how many steps a rank has done; -1 before its first progress record."""
    return evidence.progress.step if evidence.progress else -1


def _describe_progress(evidence: Evidence) -> str:
    progress = evidence.progress
    if progress is None:
        return "It wrote no progress record."
    return f"Last seen at stage {progress.stage!r}, with {progress.step} steps done."


# ---- lines that explain a crash ----


class CrashLog(NamedTuple):
    """Lines of a log that explain a crash, safe for a terminal; each is empty if the log lacks it."""

    error: str
    """Python's own line: ``Fatal Python error: Segmentation fault``."""
    printed: str
    """The last line before ``error`` that may explain the crash, or in the log if ``error`` is empty."""
    where: str
    """file:line of the Python code that crashed."""


def read_crash_log(log: str) -> CrashLog:
    """Return the lines that explain a crash, given the end of the log of a rank that died."""
    *_, crash = [None, *_CRASH.finditer(log)]
    *_, printed = ["", *_explaining_lines(log[: crash.start()] if crash else log)]
    at = _CRASHED_AT.search(log, crash.end()) if crash else None
    return CrashLog(
        error=_one_line(crash[0]) if crash else "",
        printed=printed,
        where=f"{at['file']}:{at['line']}" if at else "",
    )


def read_launcher_log(log: str) -> list[str]:
    """Return lines of a launcher's log that may explain why a rank ended without printing anything.

    They end where the launcher reports that a rank is gone. If they are more than eleven, "…" takes the place
    of those in the middle. The list is empty if no line explains anything.
    """
    report = re.search("|".join(_AFTERMATH), log, re.MULTILINE)
    lines = list(_explaining_lines(log[: report.start()] if report else log))
    if len(lines) <= _FIRST_LINES + _LAST_LINES:
        return lines
    return [*lines[:_FIRST_LINES], "…", *lines[-_LAST_LINES:]]


def _explaining_lines(printed: str) -> Iterator[str]:
    """Return the lines that may explain a failure, without those that never do."""
    lines = map(_one_line, _SHOWN_WITH_WARNING.sub(r"\1", printed).splitlines())
    return (line for line in lines if not any(re.fullmatch(p, line) for p in _EXPLAINS_NOTHING))


def _one_line(line: str) -> str:
    return "".join(filter(str.isprintable, _COLOUR.sub("", line))).strip()[:_LINE_CHARACTERS]

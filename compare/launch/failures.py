"""Find the root cause of a failed launch in the contents of its files.

Launchers name the victim: the rank whose connection broke, not the one that broke it. The root cause is
the first observed failure, by the time at which the process exited. No other rank can notice it sooner,
because the kernel closes the connections of a process at its exit.

A rank that its launcher ended is never the cause. A rank that was killed from outside is never a victim.

Of the log of a dead rank, or of its launcher, only the lines that explain a crash are quoted. Python prints
its stacks at a crash, and a library prints an error before it aborts. Lines around these explain nothing, so
they are left out: rules, numbered stacks, the line of code shown with a warning.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from math import inf
from typing import Literal, NamedTuple

from compare.schema.job import Progress, RankExit, RankFailure

_DUMP = re.compile(r"Timeout \([\d:.]+\)!\n(?=(?:Current thread|Thread) 0x)")
"""What a rank's watchdog prints above the stacks. Text without a newline may stand before it."""
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*:$", re.MULTILINE)
_CUT_OFF = re.compile(r"^  \.\.\.$", re.MULTILINE)
"""The end of a stack with more than a hundred frames."""
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
"""Files that wait in C code if their frame is innermost, as DDP does to agree on its buckets."""
_Stack = list[tuple[str, str]]
"""(file:line, function), innermost first."""
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


class Evidence(NamedTuple):
    """What the files of one rank say, with times by the clock of this machine."""

    rank: int
    host: str
    has_result: bool
    failure: RankFailure | None
    exit: RankExit | None
    """How the rank exited; None if its witness was killed, or never started."""
    started: bool
    """Whether the rank's witness started."""
    log: str
    """The end of what the rank printed."""
    stacks: str
    """The rank's stacks at SIGTERM; empty without any."""
    progress: Progress | None

    @property
    def stalled(self) -> bool:
        """Whether the rank's own watchdog ended it."""
        return bool(_DUMP.search(self.log))

    @property
    def ended(self) -> bool:
        """Whether the rank was ended, by a signal to its witness or by its lease, before it failed itself."""
        if self.stalled:
            return False
        return bool(self.exit.ended_by if self.exit else self.stacks)

    @property
    def stopped(self) -> bool:
        """Whether the rank was stopped (SIGSTOP) during its work and was still so when it exited.

        A stop while a rank waits for its turn does not count, because the agent itself does that.
        """
        waits = self.progress is not None and self.progress.stage == "turn"
        return bool(self.exit and self.exit.stopped and not waits)

    @property
    def killed(self) -> bool:
        """Whether something outside the launch killed the rank, or its witness."""
        if self.exit is None:
            return self.started and not (self.ended or self.stalled or self.failure)
        return self.exit.signal == signal.SIGKILL and not self.ended


class Cause(NamedTuple):
    """The root cause of a failed launch."""

    rank: int
    host: str
    kind: Literal["raised", "died", "stalled", "deadlocked"]
    """``deadlocked`` if ranks wait for each other; then ``rank`` is the lowest of them."""
    at: float
    """Unix time by this machine's clock at which the rank exited or failed; infinite if unknown."""
    found: str
    """The rank's error, or how it exited and what it did last."""
    where: str
    """file:line of the code; empty if unknown."""


def find_cause(evidence: list[Evidence]) -> Cause | None:
    """Return the root cause of a failed launch; None if no rank failed by itself."""
    open_cases = [rank for rank in evidence if not rank.has_result]
    # Launchers notice a killed witness at once. Beside a stall, a missing one was killed afterwards. As
    # horovodrun ends, srun kills the step with a stopped rank in it.
    stall = any(rank.stalled for rank in open_cases)
    if killed := [rank for rank in open_cases if rank.killed and (rank.exit or not stall)]:
        return _died(min(killed, key=_exited_at))
    failed = [rank for rank in open_cases if (rank.failure or rank.exit) and not rank.ended]
    causes = [_raised(e, e.failure) if e.failure else _died(e) for e in failed if not e.stalled]
    if any(rank.stalled or rank.stopped for rank in open_cases):
        causes.append(_stalled(open_cases))
    return min(causes, key=lambda cause: cause.at, default=None)


def find_unstarted(evidence: list[Evidence]) -> Evidence | None:
    """Return the only rank that never started, if all others without a result were ended; else None."""
    open_cases = [rank for rank in evidence if not rank.has_result]
    unstarted = [rank for rank in open_cases if not rank.started and not rank.failure]
    ended = [rank for rank in open_cases if rank.ended]
    alone = len(unstarted) == 1 and ended and len(ended) + 1 == len(open_cases)
    return unstarted[0] if alone else None


def main_stack(evidence: Evidence) -> _Stack:
    """Return the stack of a rank's main thread, innermost frame first; empty if it is unknown.

    Frames of the import system are left out. A rank that imports MPI waits for all others within that system,
    so the module that imports MPI counts.
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


def _raised(evidence: Evidence, failure: RankFailure) -> Cause:
    at = evidence.exit.time if evidence.exit else failure.at
    return Cause(evidence.rank, failure.host, "raised", at, failure.message, failure.where)


def _died(evidence: Evidence) -> Cause:
    crash = read_crash_log(evidence.log)
    how = _how_it_exited(evidence.exit)
    printed = f"It last printed: {crash.printed}" if crash.printed else ""
    found = "\n".join(filter(None, [how, crash.error, printed, _last_seen(evidence)]))
    return Cause(evidence.rank, evidence.host, "died", _exited_at(evidence), found, crash.where)


def _how_it_exited(record: RankExit | None) -> str:
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


def _stalled(open_cases: list[Evidence]) -> Cause:
    """Return the cause of a stall: the rank that most likely held up the others.

    A stopped rank comes first, then one without any trace, then one that waits for no other rank. The
    launcher may have ended the last kind, if the watchdog of a waiting rank fired first. Of several such
    ranks, one that its own watchdog ended comes first, because the others may still compute. If all ranks
    wait, the one with the fewest steps comes first; if several have as few, they wait for each other.
    """
    dumped = [e for e in open_cases if e.stalled]
    stopped = [e for e in open_cases if e.stopped]
    mute = [e for e in open_cases if not (e.stalled or e.failure or e.stacks or (e.exit and not e.ended))]
    stacks = {e.rank: main_stack(e) for e in open_cases}
    busy = [e for e in open_cases if stacks[e.rank] and not _waits(stacks[e.rank])]
    at = min((_exited_at(e) for e in dumped or stopped), default=inf)
    hung = [e for e in busy if e.stalled]
    chosen = min(stopped or mute or hung or busy or dumped, key=lambda e: (_step(e), e.rank))
    if not (stopped or mute or busy):
        waited = {e.rank: stacks[e.rank] or _waited_in(e.failure) for e in open_cases}
        together = [e for e in open_cases if waited[e.rank] and _step(e) == _step(chosen)]
        if len(together) > 1:
            entered = "; ".join(f"rank {e.rank} on {e.host} at {_entered(waited[e.rank])}" for e in together)
            return Cause(chosen.rank, chosen.host, "deadlocked", at, f"{_last_seen(chosen)}\n{entered}", "")
    stack = stacks[chosen.rank]
    found = f"{'It was stopped (SIGSTOP). ' if chosen in stopped else ''}{_last_seen(chosen)}"
    return Cause(chosen.rank, chosen.host, "stalled", at, found, stack[0][0] if stack else "")


def _waits(stack: _Stack) -> bool:
    if stack and any(mark in stack[0][0] for mark in _WAITING_INSIDE):
        return True
    # The call that waits is among the innermost frames. A device's queue may end in a collective, too.
    return any(
        any(mark in place for mark in _WAITING) or ("/torch/cuda/" in place and function == "synchronize")
        for place, function in stack[:4]
    )


def _waited_in(failure: RankFailure | None) -> _Stack:
    """Return the stack of a rank that raised while it waited for another; otherwise an empty one."""
    if failure is None:
        return []
    frames = [(f"{m['file']}:{m['line']}", m["function"]) for m in _RAISED_FRAME.finditer(failure.traceback)]
    return frames[::-1] if _waits(frames[::-1]) else []


def _entered(stack: _Stack) -> str:
    """Return the innermost place outside the libraries, as file:line: the call that waits."""
    ours = (place for place, _ in stack if not any(mark in place for mark in (*_WAITING, "/torch/")))
    return next(ours, stack[0][0])


def _step(evidence: Evidence) -> int:
    return evidence.progress.step if evidence.progress else -1


def _last_seen(evidence: Evidence) -> str:
    progress = evidence.progress
    if progress is None:
        return "It wrote no progress record."
    return f"Last seen at stage {progress.stage!r}, with {progress.step} steps done."


# ---- lines that explain a crash ----


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

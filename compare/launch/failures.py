"""Who is the cause that a launch ended without all its results: pure, from what every rank left behind.

Launchers name the victim: the rank whose connection broke, not the one that broke it. The cause is the
first rank that raised, died or stalled, by time; a rank that its launcher ended is never it.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from compare.launch.crash_log import find_last_words
from compare.schema.job import Progress, RankFailure

_FIRST_WORD_SECONDS = 1.5
"""A rank that died says nothing, and is found up to half a second later; its peers' complaints of broken
connections come within this time."""
_COMPLAINT = re.compile(r"connect|reset by peer|broken pipe|closed|remote|horovod|nccl", re.IGNORECASE)
_SILENT_DEATH = (
    "It left neither a result nor an error: ended from outside (kill -9, or out of memory), or by itself."
)
_UNHEARD_DEATH = "It ended before its first word, and its launcher went on, as launchers do at a status of 0."
_DUMP = re.compile(r"Timeout \([\d:.]+\)!\n(?=(?:Current thread|Thread) 0x)")
"""Wherever in a line: what was printed before it may lack its newline."""
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*:$", re.MULTILINE)
_CUT_OFF = re.compile(r"^  \.\.\.$", re.MULTILINE)
"""Below the innermost hundred frames of a stack."""
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_RAISED_FRAME = re.compile(
    r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE
)
# Where a rank stands that waits for others rather than being waited for.
_WAITING = (
    *("/backends/groups/", "/backends/strategies/shared_memory/"),
    *("/torch/distributed/", "/torch/autograd/graph.py", "/horovod/torch/", "/horovod/common/", "/mpi4py/"),
)


class Evidence(NamedTuple):
    """What one rank left behind."""

    rank: int
    host: str
    has_result: bool
    failure: RankFailure | None
    died_at: float | None
    """Unix time at which its process was found gone, with neither result nor failure."""
    log: str
    """The end of what it printed."""
    stacks: str
    """Where it stood when it was told to end; empty where nobody told it."""
    logged_at: float
    """Unix time at which it last printed."""
    progress: Progress | None


class Cause(NamedTuple):
    """The rank that is to blame, and how it shows."""

    rank: int
    host: str
    kind: Literal["raised", "died", "stalled", "deadlocked"]
    """Where all wait for each other none is to blame more than another, and ``rank`` is the first of them."""
    at: float
    said: str
    """Its error, or what can be said in its stead."""
    where: str
    """file:line, where it is known."""


def find_cause(evidence: list[Evidence]) -> Cause | None:
    """Find the first rank that raised, died or stalled; None where no rank did."""
    open_cases = [rank for rank in evidence if not rank.has_result]
    raised = [_raised(e, e.failure) for e in open_cases if e.failure and e.failure.kind == "raised"]
    silent = [e for e in open_cases if not e.failure and not _was_ended(e)]
    stalled = [e for e in silent if _DUMP.search(e.log)]
    died = [_died(e, e.died_at) for e in silent if e.died_at and e not in stalled]
    events = raised + ([_stalled(open_cases, stalled)] if stalled else [])
    first = min(events, key=lambda cause: cause.at, default=None)
    first_death = min(died, key=lambda cause: cause.at, default=None)
    if first_death and (first is None or first_death.at < first.at + _head_start(first)):
        return first_death
    return first


def find_unseen(evidence: list[Evidence]) -> Evidence | None:
    """Find the one rank that left no trace at all, where the launcher ended all others that have no result.

    It was gone, or did not load, before it could say that it had begun.
    """
    open_cases = [rank for rank in evidence if not rank.has_result]
    unseen = [rank for rank in open_cases if not rank.failure and not rank.progress]
    ended = [rank for rank in open_cases if _was_ended(rank)]
    return unseen[0] if len(unseen) == 1 and ended and len(ended) + 1 == len(open_cases) else None


def _was_ended(evidence: Evidence) -> bool:
    """Whether its launcher told it to end, and it had not stalled before.

    A rank that waits in a library for the others to join may be killed before it gets to say so.
    """
    if evidence.failure:
        return evidence.failure.kind == "ended"
    return bool(evidence.stacks) and not _DUMP.search(evidence.log)


def _head_start(first: Cause) -> float:
    """Seconds by which a death may be found after what it caused; an error of one's own is no consequence."""
    return _FIRST_WORD_SECONDS if first.kind == "raised" and _COMPLAINT.search(first.said) else 0.0


def main_stack(evidence: Evidence) -> list[tuple[str, str]]:
    """Return (file:line, function) of the main thread of a rank that stalled or was told to end.

    Innermost first, but for importing. Whoever loads MPI waits for all others in it: what counts is who
    imports, not how.
    """
    dump = _DUMP.search(evidence.log)
    for stack in _THREAD.split(evidence.log[dump.end() :] if dump else evidence.stacks)[1:]:
        frames = [
            (f"{m['file']}:{m['line']}", m["function"])
            for m in _FRAME.finditer(stack)
            if not m["file"].startswith("<frozen ")
        ]
        # Only the main thread is ever so deep that its beginning is cut off: in imports.
        if any("compare/worker/__main__.py" in place for place, _ in frames) or _CUT_OFF.search(stack):
            return frames
    return []


def _raised(evidence: Evidence, failure: RankFailure) -> Cause:
    return Cause(evidence.rank, failure.host, "raised", failure.at, failure.message, failure.where)


def _died(evidence: Evidence, at: float) -> Cause:
    words = find_last_words(evidence.log)
    printed = f"It last printed: {words.printed}" if words.printed else ""
    silent = _SILENT_DEATH if evidence.progress else _UNHEARD_DEATH
    said = "\n".join(filter(None, [words.crash or silent, printed, _last_seen(evidence)]))
    return Cause(evidence.rank, evidence.host, "died", at, said, words.where)


def _stalled(open_cases: list[Evidence], dumped: list[Evidence]) -> Cause:
    """Choose among ranks that all stopped: one that cannot even say so, else one that is in no collective.

    That one may have been ended by its launcher, where the watchdog of a rank that waits for it was first.
    Where all are in one, the one that is behind; and where none is, they wait for each other.
    """
    mute = [e for e in open_cases if not (e in dumped or e.failure or e.died_at or _was_ended(e))]
    stacks = {e.rank: main_stack(e) for e in open_cases}
    busy = [e for e in open_cases if stacks[e.rank] and not _waits(stacks[e.rank])]
    suspects = mute or busy or dumped
    culprit = min(suspects, key=lambda e: (_step(e), e.rank))
    stack = stacks[culprit.rank]
    where = stack[0][0] if stack else ""
    at = min(e.logged_at for e in dumped)
    if not mute and not busy:
        waited = {e.rank: stacks[e.rank] or _complained_in(e.failure) for e in open_cases}
        together = [e for e in open_cases if waited[e.rank] and _step(e) == _step(culprit)]
        if len(together) > 1:
            entered = "; ".join(f"rank {e.rank} on {e.host} at {_entered(waited[e.rank])}" for e in together)
            return Cause(
                culprit.rank, culprit.host, "deadlocked", at, f"{_last_seen(culprit)}\n{entered}", ""
            )
    return Cause(culprit.rank, culprit.host, "stalled", at, _last_seen(culprit), where)


def _waits(stack: list[tuple[str, str]]) -> bool:
    # Innermost frames first: the few that a library puts above the call that waits.
    # A device is waited for as well: its queue may end in a collective.
    return any(
        any(mark in place for mark in _WAITING) or ("/torch/cuda/" in place and function == "synchronize")
        for place, function in stack[:4]
    )


def _complained_in(failure: RankFailure | None) -> list[tuple[str, str]]:
    """Return the stack of a rank that was still waiting when another's end broke its connection."""
    if failure is None or not _COMPLAINT.search(failure.message):
        return []
    frames = [(f"{m['file']}:{m['line']}", m["function"]) for m in _RAISED_FRAME.finditer(failure.traceback)]
    return frames[::-1]


def _entered(stack: list[tuple[str, str]]) -> str:
    """Say where a rank went into what waits: the innermost frame that is no library's."""
    ours = (place for place, _ in stack if not any(mark in place for mark in (*_WAITING, "/torch/")))
    return next(ours, stack[0][0])


def _step(evidence: Evidence) -> int:
    return evidence.progress.step if evidence.progress else -1


def _last_seen(evidence: Evidence) -> str:
    progress = evidence.progress
    if progress is None:
        return "It never began."
    return f"Last seen at stage {progress.stage!r}, with {progress.step} steps done."

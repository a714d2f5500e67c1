"""Which ranks are gone before their first word: to whoever waits they look like ranks that are slow to begin.

No launcher minds a rank that exits with status 0, and before its first word nobody knows its process. So
where some ranks have begun and the others are long in coming, the roll is called: every process of the
launch on this machine is looked at. A rank is absent if none of them is that rank or may become it. That is
the hard part: launchers fork, and horovodrun has a Python and a shell between itself and every rank, all of
which take seconds on a busy machine. To take such a rank for dead would be worse than to wait for it, so in
any doubt nobody is absent.
"""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from backends.launchers import LAUNCHERS
from backends.launchers.request import MARKER
from compare.launch.processes import is_tracker

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_QUIET_SECONDS = 3.0
"""How long nobody new must have begun: where all is well ranks begin together, and nothing is looked at."""
_APART_SECONDS = 0.4
"""Between two looks: a tick, or nearly."""
_REST = 10.0
"""How many times as long as a look took nobody looks again: where thousands of processes run, it is felt."""


class Process(NamedTuple):
    """A live process of a launch on this machine."""

    pid: int
    parent: int
    rank: int | None = None
    """Which rank it is, or descends from, by its environment; None where its launcher has not said so."""
    is_tracker: bool = False
    """Whether it is Python's tracker of shared memory, which becomes nothing else."""
    is_asleep: bool = True
    """Whether all its threads wait for something, so that it is not about to start anybody."""


class _Look(NamedTuple):
    """What one look at a launch found."""

    pids: frozenset[int] = frozenset()
    absent: frozenset[int] = frozenset()


class RollCall:
    """The roll of one launch on this machine.

    Args:
        mark: the launch's name, in the environment of its processes.
        launcher: what it is launched by.
        ranks: those that are to run on this machine.
    """

    def __init__(self, mark: str, launcher: str, ranks: Iterable[int]) -> None:
        self._mark = mark
        self._launcher = launcher
        self._ranks = frozenset(ranks)
        self._begun = 0
        self._began_at = 0.0
        self._looked_at = 0.0
        self._look_seconds = 0.0
        self._last = _Look()

    def absent(self, begun: Collection[int]) -> dict[int, float]:
        """Return the ranks that are gone without having begun; to be asked at every tick.

        It costs nothing before some have begun, and after all have.

        Args:
            begun: the ranks of this machine that have said their first word.

        Returns:
            Each with the seconds since the last that did begin: it was gone by then, or soon after, and
            whatever another has said since may be a consequence.
        """
        now = time.monotonic()
        if len(begun) != self._begun:
            self._begun, self._began_at, self._last = len(begun), now, _Look()
        missing = self._ranks.difference(begun)
        if not (missing and begun) or now - self._began_at < _QUIET_SECONDS:
            return {}
        if now - self._looked_at < max(_APART_SECONDS, _REST * self._look_seconds):
            return {}
        last, self._last = self._last, self._look(missing)
        self._looked_at = time.monotonic()
        self._look_seconds = self._looked_at - now
        # Processes are listed first and looked at one by one: a launcher may be found at rest that waits for
        # somebody whom it has started since. The next look has that one on its list.
        agreed = last.absent & self._last.absent if last.pids == self._last.pids else ()
        return dict.fromkeys(agreed, self._looked_at - self._began_at)

    def _look(self, missing: Collection[int]) -> _Look:
        processes = read_launch(self._mark, self._launcher)
        pids = frozenset(process.pid for process in processes)
        return _Look(pids, frozenset(find_absent(processes, missing)))


def find_absent(processes: Collection[Process], ranks: Collection[int]) -> set[int]:
    """Return those of ``ranks`` that no process of the launch is, or may be about to become: pure.

    Nobody, unless every process is accounted for: as a rank, as below one, or as what has started one and
    is at rest. Where no starter of a rank is among them, whoever it is may start others yet: sshd, say.
    """
    table = {process.pid: process for process in processes}
    above = {process.pid: _above(process, table) for process in processes}
    named = {process.pid for process in processes if process.rank is not None}
    below = {pid for pid, ancestors in above.items() if named.intersection(ancestors)}
    starters = set(chain.from_iterable(above[pid] for pid in named)) - named - below
    trackers = {process.pid for process in processes if process.is_tracker}
    if not starters or table.keys() - named - below - starters - trackers:
        return set()
    if not all(table[pid].is_asleep for pid in starters):
        return set()
    return set(ranks) - {process.rank for process in processes}


def _above(process: Process, table: Mapping[int, Process]) -> list[int]:
    """Return the ancestors of a process, the nearest first."""
    found: list[int] = []
    # What is not read at one moment may go round in a circle.
    while (process.parent in table) and process.parent not in found:
        process = table[process.parent]
        found.append(process.pid)
    return found


def read_launch(mark: str, launcher: str) -> list[Process]:
    """Look at the processes of a launch on this machine, and at all that descend from them.

    Not at their marks alone: as a process becomes another program, it has no environment for a moment.
    """
    living = _living()
    ours = {pid for pid, (_, _, environment) in living.items() if environment.get(MARKER) == mark}
    while young := {pid for pid, (_, parent, _) in living.items() if parent in ours} - ours:
        ours |= young
    found = []
    for pid in ours:
        process, parent, environment = living[pid]
        rank = _rank_in(environment, launcher)
        is_rank = rank is not None
        found.append(Process(pid, parent, rank, not is_rank and _tracks(process), is_rank or _is_asleep(pid)))
    return found


def _living() -> dict[int, tuple[psutil.Process, int, dict[str, str]]]:
    """Return every live process with its parent and its environment, which is empty where it is not ours."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            # One that has ended becomes nobody, and its launcher need not ever reap it.
            if process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = (process, process.ppid(), _environment(process))
    return found


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def _rank_in(environment: Mapping[str, str], launcher: str) -> int | None:
    with suppress(KeyError, ValueError):
        return LAUNCHERS[launcher].placement(environment).rank
    return None


def _tracks(process: psutil.Process) -> bool:
    with suppress(psutil.Error, OSError):
        return is_tracker(process)
    return False


def _is_asleep(pid: int) -> bool:
    """Whether every thread of a process waits for something; one that waits for a core or a disk does not."""
    try:
        # As bytes: a thread's name, which stands before its state, may be anything.
        states = [
            (thread / "stat").read_bytes().rpartition(b")")[2].split()[0]
            for thread in Path(f"/proc/{pid}/task").iterdir()
        ]
    except (OSError, IndexError):  # it has ended meanwhile, or a thread of it
        return False
    return set(states) <= {b"S", b"I"}

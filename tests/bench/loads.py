"""Keep a core busy at the times that could mislead a comparison.

``python -m tests.bench.loads WHEN`` is that load. It keeps one core busy while *when* says so, and looks anew
every hundredth of a second. It sees only ranks that may use the same CPUs.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

_RANK = re.compile(r"launches/(\d+)-[^/]*_([12])/job\.json")
_LOOK = 0.01
_SPELL = 60.0
"""Seconds: longer than a pass of turns."""
_COMPUTES = 0.1
"""Minimum share of a look that a rank computes in its turn."""


def _each_second(_):
    return int(time.time()) % 2 == 0


def _in_spells(_):
    return int(time.time() / _SPELL) % 2 == 0


def _second_cohorts(ranks):
    """Tell whether launches of a second, fourth … cohort of two are alive."""
    return any(rank.launch % 4 in {3, 0} for rank in ranks)


def _turns_of_one_arm(ranks):
    """Tell whether the first arm computes and the second waits."""
    return {rank.arm for rank in ranks if rank.busy > _COMPUTES} == {1}


WANTED = {
    "on and off": _each_second,
    "in spells": _in_spells,
    "in cohorts": _second_cohorts,
    "in turns": _turns_of_one_arm,
}


@contextlib.contextmanager
def injected(when):
    """Run the load beside what the block does; *when* may be ``none``."""
    command = [sys.executable, "-m", "tests.bench.loads", when]
    spinning = [] if when == "none" else [subprocess.Popen(command)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


class _Rank(NamedTuple):
    launch: int
    arm: int
    busy: float
    """Share of the last look in which its main thread computed."""


class _Ranks:
    """The ranks of an A/A comparison, as any program can see them."""

    def __init__(self):
        self._before = {}
        self._cpus = os.sched_getaffinity(0)

    def look(self):
        now, seen, ranks = time.monotonic(), {}, []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                found = _RANK.search((folder / "cmdline").read_text(errors="replace"))
                if found and os.sched_getaffinity(int(folder.name)) == self._cpus:
                    computed = int((folder / "schedstat").read_text().split()[0]) / 1e9
                    seen[folder.name] = now, computed
                    then, before = self._before.get(folder.name, (now - 1, computed))
                    ranks.append(_Rank(int(found[1]), int(found[2]), (computed - before) / (now - then)))
        self._before = seen
        return ranks


def main():
    wanted, ranks = WANTED[sys.argv[1]], _Ranks()
    while True:
        busy = wanted(ranks.look())
        until = time.monotonic() + _LOOK
        while busy and time.monotonic() < until:
            pass
        time.sleep(max(0, until - time.monotonic()))


if __name__ == "__main__":
    main()

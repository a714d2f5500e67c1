"""Measure the parent of a run on hundreds of hosts, whose agents are stand-ins.

``python -m tests.bench.hosts --hosts 2,8,64,256 --arms 2,6 --ranks 8`` prints a row for each number of hosts
and arms. CPU time is that of the parent alone, so other programs on the machine change it little.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import groupby
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from compare.schema.results import RankResult
from compare.system.collector import collect_rarely
from tests.bench.host_agents import Plan, Seen
from tests.bench.stand_ins import compare_on, stand_in_hosts
from tests.comparing import ROOT, find_mnist

ARMS = ("none", "ddp", "manual", "zero", "fsdp", "localsgd")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TIMEOUT_SECONDS = 600
_LIMITS = {"stall_seconds": 300.0, "launch_timeout_seconds": 600.0}
"""On a busy machine hundreds of stand-ins may wait long for a core, which is no failure here."""


class Parent:
    """An observer that samples this process's times and memory at the events of a run."""

    def __init__(self) -> None:
        self.trained: list[tuple[float, float]] = []
        """The CPU time and the time from the first turn of each round to its last."""
        self.to_results: list[tuple[float, float]] = []
        """The same from the first turn of each round to its last result."""
        self.memory_bytes: list[int] = []
        """The resident set before the first round, and after each round."""
        self.turns = 0
        """Number of turns whose time ``trained`` holds."""
        self._began = (0.0, 0.0)

    def turn_begins(self, _planned, turn, turns):
        if turn == 1:
            self._began = _times()
        if turn == turns:
            self.trained.append(self._since())
            self.turns += turns - 1

    def launch_ended(self, _planned, _launch):
        if len(self.to_results) < len(self.trained):  # the first of a round, when all have ended
            self.to_results.append(self._since())

    def rounds_done(self, _run):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.memory_bytes.append(pages * _PAGE_BYTES)

    def __getattr__(self, _name):
        return lambda *_: None

    def _since(self):
        return tuple(now - then for now, then in zip(_times(), self._began, strict=True))


def _times():
    return time.process_time(), time.monotonic()


def measure(hosts: int, arms: int, ranks: int, rounds: int, start_seconds: float, like: Path) -> dict:
    """Carry out a run in this process, and return its figures."""
    results = tuple(
        msgspec.json.decode((like / f"rank-{rank}.json").read_bytes(), type=RankResult) for rank in (0, 1)
    )
    parent = Parent()
    collect_rarely()  # as the command line does
    with tempfile.TemporaryDirectory(prefix="ringside-hosts-") as folder:
        plan = Plan(folder=folder, ranks=ranks, results=results, start_seconds=start_seconds)
        began = _times()
        with stand_in_hosts(hosts, plan) as allocation:
            compare_on(
                allocation, ",".join(ARMS[:arms]), parent, Path(folder, "run"), rounds=rounds, **_LIMITS
            )
            took = [now - then for now, then in zip(_times(), began, strict=True)]
        seen = [msgspec.json.decode(f.read_bytes(), type=Seen) for f in Path(folder).glob("*.json")]
    seconds_between = _between_turns(seen)
    return {
        "hosts": hosts,
        "arms": arms,
        "cpu_in_turns": _share(parent.trained),
        "cpu_to_results": _share(parent.to_results),
        "between_turns_ms": [1e3 * statistics.median(seconds_between), 1e3 * max(seconds_between)],
        "memory_mib": [size >> 20 for size in parent.memory_bytes],
        "opened_at_once": _opened_at_once(seen),
        "silent_seconds": max(each.silent_seconds for each in seen),
        "messages_per_second": sum(each.sent + each.received for each in seen) / took[1],
        "cpu_ms_a_turn": 1e3 * sum(cpu for cpu, _ in parent.trained) / parent.turns,
        "cpu_seconds": took[0],
        "seconds": took[1],
    }


def _share(taken: list[tuple[float, float]]) -> float:
    return sum(cpu for cpu, _ in taken) / sum(seconds for _, seconds in taken)


def _between_turns(seen: list[Seen]) -> list[float]:
    """Return the seconds from the last arrival of each turn to the last rank's host that goes on after it."""

    def by_turn(events):
        ordered = sorted(events)
        return [[at for *_, at in group] for _, group in groupby(ordered, key=lambda each: each[:2])]

    ends = sorted(max(times) for times in by_turn(each for one in seen for each in one.waited))
    begins = by_turn(each for one in seen for each in one.went)
    between = []
    for times in begins:
        before = [end for end in ends if end <= min(times)]
        between.append(max(times) - before[-1])
    return between


def _opened_at_once(seen: list[Seen]) -> int:
    """Return the largest number of connections that were opened and not ready at the same time."""
    changes = sorted([(one.opened_at, 1) for one in seen] + [(one.ready_at, -1) for one in seen])
    at_once = most = 0
    for _, change in changes:
        at_once += change
        most = max(most, at_once)
    return most


def real_launch(folder: Path) -> Path:
    """Carry out a run with two real ranks, whose results serve as a pattern, and return ddp's launch."""
    data = find_mnist() or sys.exit("MNIST is missing: ringside setup data --data data")
    command = [sys.executable, "-m", "compare", "run", "-np", "2", "--repeats", "1", "--device", "cpu"]
    command += ["--backend", "none,ddp", "--data", str(data), "--output", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=_TIMEOUT_SECONDS)
    return next((folder / "launches").glob("*-ddp"))


def main() -> None:
    given = _parse()
    if given.measure:
        print(json.dumps(measure(*given.measure, given.ranks, given.rounds, given.start_seconds, given.like)))
        return
    table = Table(
        "hosts", "arms", "in turns", "to results", "between turns", "memory", "opened", "silent", "messages/s"
    )
    with tempfile.TemporaryDirectory(prefix="ringside-hosts-") as folder:
        like = given.like or real_launch(Path(folder, "run"))
        for hosts in given.hosts:
            for arms in given.arms:
                flags = ["--ranks", given.ranks, "--rounds", given.rounds, "--like", like]
                flags += ["--start-seconds", given.start_seconds, "--measure", hosts, arms]
                command = [sys.executable, "-m", "tests.bench.hosts", *map(str, flags)]
                done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
                figures = json.loads(done.stdout.splitlines()[-1])
                print(json.dumps(figures), file=sys.stderr)
                table.add_row(*_row(figures))
    Console().print(table)


def _row(figures):
    median, most = figures["between_turns_ms"]
    return (
        str(figures["hosts"]),
        str(figures["arms"]),
        f"{figures['cpu_in_turns']:.1%}",
        f"{figures['cpu_to_results']:.1%}",
        f"{median:.1f} ms, at most {most:.0f}",
        f"{', '.join(map(str, figures['memory_mib']))} MiB",
        str(figures["opened_at_once"]),
        f"{figures['silent_seconds']:.1f} s",
        f"{figures['messages_per_second']:.0f}",
    )


def _parse():
    def numbers(text):
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(prog="python -m tests.bench.hosts", description=__doc__)
    parser.add_argument("--hosts", type=numbers, default=[2, 8, 64, 256], metavar="N,N")
    parser.add_argument("--arms", type=numbers, default=[2, 6], metavar="N,N", help=f"of {', '.join(ARMS)}")
    parser.add_argument("--ranks", type=int, default=8, help="on each host [default: %(default)s]")
    parser.add_argument("--rounds", type=int, default=2, help="[default: %(default)s]")
    parser.add_argument("--start-seconds", type=float, default=0.5, help="that an agent takes to start")
    parser.add_argument("--like", type=Path, help="folder of a launch with results [default: of a new run]")
    parser.add_argument("--measure", type=int, nargs=2, metavar=("HOSTS", "ARMS"), help="one row, as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()

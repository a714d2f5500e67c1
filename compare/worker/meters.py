"""Measure CPU load and memory, as the kernel counts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from operator import add, sub
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import NamedTuple

from compare.schema.results import MachineUse


class CPUMeter:
    """Measures the load of the CPUs that this process may use.

    A CPU is busy while it is not idle. The kernel times idle spans, but samples at its ticks what a busy CPU
    does. Processes that wake and sleep in step with the ticks are sampled too seldom. On two CPUs, beside
    ``ddp`` alone, samples were 0.1 core short of the CPU time of its ranks.
    """

    def __init__(self) -> None:
        self._cpus = {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)}
        self._left_out = _Counts()
        self._begun = self._now()

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Leave out what happens during this block."""
        begun = self._now()
        yield
        self._left_out = _Counts(*map(add, self._left_out, map(sub, self._now(), begun)))

    def read(self) -> tuple[MachineUse, int]:
        """Return the machine's load, and this process's CPU nanoseconds."""
        found = _Counts(*map(sub, map(sub, self._now(), self._begun), self._left_out))
        cpus = len(self._cpus)
        use = MachineUse(
            wall_ns=found.wall,
            cpus=cpus,
            # A CPU that is taken away takes its counts along.
            busy_ns=max(0, found.busy_of(cpus)),
            stolen_ns=max(0, found.stolen),
            boot_id=boot_id(),
        )
        return use, found.own

    def _now(self) -> _Counts:
        tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        idle = sampled = stolen = 0
        for line in Path("/proc/stat").read_text().splitlines():
            name, *ticks = line.split()
            if name in self._cpus:
                user, nice, system, idling, iowait, irq, softirq, steal = map(int, ticks[:8])
                idle += tick * (idling + iowait)
                sampled += tick * (user + nice + system + irq + softirq + steal)
                stolen += tick * steal
        return _Counts(perf_counter_ns(), idle, sampled, stolen, process_time_ns())


class _Counts(NamedTuple):
    """Nanoseconds of all CPUs together, and of this process."""

    wall: int = 0
    idle: int = 0
    sampled: int = 0
    """Busy time by the samples of the kernel's ticks."""
    stolen: int = 0
    own: int = 0

    def busy_of(self, cpus: int) -> int:
        """Return the time that is not idle; the samples where idle time is not counted."""
        counted = self.idle + self.sampled
        return cpus * self.wall - self.idle if 2 * counted > cpus * self.wall else self.sampled


def boot_id() -> str:
    """Return the name of the running kernel; empty where it is hidden."""
    try:
        with Path("/proc/sys/kernel/random/boot_id").open() as file:
            return file.read().strip()
    except OSError:
        return ""

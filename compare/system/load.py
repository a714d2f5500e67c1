"""Read how busy the CPUs of this machine are, and how much of that is this process's own work."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import NamedTuple


class Counts(NamedTuple):
    """Nanoseconds since some fixed time; those of the CPUs are sums over all CPUs that are asked for.

    The counts of a CPU that goes offline are lost, so a difference of two readings may be negative.
    """

    wall: int = 0
    idle: int = 0
    sampled: int = 0
    """Busy time of the CPUs, as the kernel samples it at its ticks."""
    stolen: int = 0
    """Time that a hypervisor gave to other machines."""
    interrupts: int = 0
    """The part of ``sampled`` in which the kernel handled interrupts, such as those of packets."""
    own: int = 0
    """CPU time of this process."""

    def busy(self, cpus: int) -> int:
        """Return the busy time of so many CPUs, of the difference of two readings.

        Busy time is all time that is not idle, because the kernel times idle spans, but only samples at its
        ticks what a busy CPU does. Processes that wake and sleep in step with the ticks are sampled too
        seldom. When two CPUs ran only ``ddp``, the samples were 0.1 core below the CPU time of the ranks.
        """
        # If the kernel accounts for less than half of the time, the busy time is that of its samples.
        accounts = 2 * (self.idle + self.sampled) > cpus * self.wall
        return max(0, cpus * self.wall - self.idle if accounts else self.sampled)


def read_counts(cpus: Collection[int]) -> Counts:
    """Return the counts of the CPUs with these numbers, and of this process.

    Raises:
        OSError: the kernel does not show them.
    """
    tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    idle = sampled = stolen = interrupts = 0
    names = {f"cpu{cpu}" for cpu in cpus}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name in names:
            user, nice, system, idling, iowait, irq, softirq, steal = map(int, ticks[:8])
            idle += tick * (idling + iowait)
            sampled += tick * (user + nice + system + irq + softirq + steal)
            stolen += tick * steal
            interrupts += tick * (irq + softirq)
    return Counts(perf_counter_ns(), idle, sampled, stolen, interrupts, process_time_ns())


def children_ns() -> int:
    """Return the CPU time of this process's children so far, such as those that load data.

    It counts those that run and those that have ended. Those of other threads are found as well. It is 0
    where the kernel does not list children.
    """
    tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    times = os.times()
    total = int((times.children_user + times.children_system) * 1e9)
    for listed in Path("/proc/self/task").glob("*/children"):
        for pid in _read(listed).split():
            # The second field, the name in parentheses, may hold spaces.
            fields = _read(Path("/proc", pid, "stat")).rpartition(")")[2].split()
            total += tick * sum(map(int, fields[11:13]))
    return total


def _read(file: Path) -> str:
    """Return the text of a file; empty if its process has ended, or if the kernel has no such file."""
    try:
        return file.read_text()
    except OSError:
        return ""

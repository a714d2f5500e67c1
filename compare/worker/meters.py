"""Measure CPU load and memory, as the kernel counts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns, process_time_ns

from compare.schema.results import MachineUse


class CPUMeter:
    """Measures the load of the CPUs that this process may use."""

    def __init__(self) -> None:
        self._cpus = {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)}
        self._left_out = (0, 0, 0, 0)
        self._begun = self._now()

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Leave out what happens during this block."""
        begun = self._now()
        yield
        spans = zip(self._left_out, self._now(), begun, strict=True)
        wall, busy, stolen, own = (before + now - then for before, now, then in spans)
        self._left_out = wall, busy, stolen, own

    def read(self) -> tuple[MachineUse, int]:
        """Return the machine's load, and this process's CPU nanoseconds."""
        spans = zip(self._now(), self._begun, self._left_out, strict=True)
        wall, busy, stolen, own = (now - then - left_out for now, then, left_out in spans)
        # A CPU that is taken away takes its counts along.
        busy, stolen = max(0, busy), max(0, stolen)
        use = MachineUse(
            wall_ns=wall, cpus=len(self._cpus), busy_ns=busy, stolen_ns=stolen, boot_id=boot_id()
        )
        return use, own

    def _now(self) -> tuple[int, int, int, int]:
        tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        busy = stolen = 0
        for line in Path("/proc/stat").read_text().splitlines():
            name, *ticks = line.split()
            if name in self._cpus:
                user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, ticks[:8])
                busy += tick * (user + nice + system + irq + softirq + steal)
                stolen += tick * steal
        return perf_counter_ns(), busy, stolen, process_time_ns()


def boot_id() -> str:
    """Return the name of the running kernel; empty where it is hidden."""
    try:
        with Path("/proc/sys/kernel/random/boot_id").open() as file:
            return file.read().strip()
    except OSError:
        return ""

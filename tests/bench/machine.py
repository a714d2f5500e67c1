"""Describe this machine, and measure the CPU load of other programs.

Ranks import this as well as the parent, so it uses only the standard library.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

OTHER_LOAD_LIMIT = 0.25
"""Share of all cores; above this other CPU load, measurements are repeated."""

_TICKS = os.sysconf("SC_CLK_TCK")
_CPUS = os.cpu_count() or 1


@dataclass(frozen=True)
class Load:
    """CPU time used on the machine during some wall time."""

    busy_seconds: float
    """On all cores, by all programs and other guests of the host."""
    own_seconds: float
    wall_seconds: float

    @property
    def others(self) -> float:
        """Return the share of the machine that others used."""
        return max(0.0, self.busy_seconds - self.own_seconds) / (_CPUS * self.wall_seconds)


class LoadMeter:
    """A meter of the load between its creation and its reading.

    Args:
        own_seconds: reads our own CPU time.
    """

    def __init__(self, own_seconds=time.process_time):
        self._own = own_seconds
        self._since = self._now()

    def read(self) -> Load:
        return Load(*(now - then for now, then in zip(self._now(), self._since, strict=True)))

    def _now(self) -> tuple[float, float, float]:
        return busy_seconds(), self._own(), time.monotonic()


def busy_seconds() -> float:
    """Return the busy CPU seconds since the machine was started."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS


def family_seconds() -> float:
    """Return the CPU seconds of this process and its ended descendants."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def describe() -> str:
    """Return processor, cores and memory."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{_processor()}, {_CPUS} cores, {memory_gib:.0f} GiB"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(line.partition(":")[::2] for line in lines if ":" in line)
    names = {name.strip(): value.strip() for name, value in fields.items()}
    model = names.get("model name", os.uname().machine)
    # Cloud machines give all their processors one name; family and model distinguish them.
    return f"{model} (family {names.get('cpu family', '?')}, model {names.get('model', '?')})"

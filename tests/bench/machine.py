"""This machine: what it is, and how much of it others were using while something was measured.

Imported by ranks as well as by the parent: the standard library only.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

FOREIGN_LIMIT = 0.25
"""Share of all cores that others may use during a measurement before it is repeated."""

_TICKS = os.sysconf("SC_CLK_TCK")
_CPUS = os.cpu_count() or 1


@dataclass(frozen=True)
class Load:
    """What ran on the machine for a while: in CPU seconds, and for how long."""

    busy_seconds: float
    """On all cores together, whoever used them; other guests of the host too."""
    own_seconds: float
    wall_seconds: float

    @property
    def foreign(self) -> float:
        """Share of the machine that was used by others."""
        return max(0.0, self.busy_seconds - self.own_seconds) / (_CPUS * self.wall_seconds)


class LoadMeter:
    """Measures the load from its making until it is read.

    Args:
        own_seconds: reads the CPU time that is our own.
    """

    def __init__(self, own_seconds=time.process_time):
        self._own = own_seconds
        self._since = self._now()

    def read(self) -> Load:
        return Load(*(now - then for now, then in zip(self._now(), self._since, strict=True)))

    def _now(self) -> tuple[float, float, float]:
        return busy_seconds(), self._own(), time.monotonic()


def busy_seconds() -> float:
    """CPU seconds that were not idle since the machine was started."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS


def family_seconds() -> float:
    """CPU seconds of this process and of all its descendants that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def describe() -> str:
    """Processor, cores, memory."""
    return f"{_processor()}, {_CPUS} cores, {_memory_gib():.0f} GiB"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(line.partition(":")[::2] for line in lines if ":" in line)
    names = {name.strip(): value.strip() for name, value in fields.items()}
    model = names.get("model name", os.uname().machine)
    # Cloud machines call all their processors the same; family and model tell them apart.
    return f"{model} (family {names.get('cpu family', '?')}, model {names.get('model', '?')})"


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30

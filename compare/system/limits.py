"""Read how much memory and CPU time this process may take.

A scheduler, a container or a service limits both by control groups. Version 2 has one tree of groups;
version 1 has one for each controller.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def folders(controller: str, groups: Path = ROOT, own: Path = OWN) -> Iterator[tuple[Path, int]]:
    """Yield the groups that limit this process, each with its version.

    The limits of all parents hold as well. Inside a container the path may be that of the host. Then some of
    these folders do not exist.
    """
    for line in own.read_text().splitlines() if own.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        here = groups / controllers / path.lstrip("/")
        for folder in (here, *here.parents):
            if folder.is_relative_to(groups):
                yield folder, 1 if controllers else 2


def core_quota(groups: Path = ROOT, own: Path = OWN) -> float | None:
    """Return the cores that groups allow; None without a limit.

    It is a share of CPU time, so it may be a fraction.
    """
    quotas = []
    for folder, version in folders("cpu", groups, own):
        with suppress(OSError, ValueError, ZeroDivisionError):  # no such group, or no limit ("max")
            quota, period = (
                (folder / "cpu.max").read_text().split()
                if version == 2  # noqa: PLR2004 -- of the kernel's interface
                else [(folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")]
            )
            if int(quota) > 0:
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_left_bytes(groups: Path = ROOT, own: Path = OWN) -> int:
    """Return how much memory processes may still take.

    The limits of this process's control groups count, without file caches that the kernel can free.
    """
    left = _available_bytes()
    for folder, version in folders("memory", groups, own):
        with suppress(OSError, ValueError):  # no such group, or no limit ("max")
            left = min(left, _left_in(folder, *_CGROUP_FILES[version]))
    return max(0, left)


_CGROUP_FILES = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By version: files of limit and use, field of the cache."""


def _left_in(folder: Path, limit: str, used: str, cache: str) -> int:
    fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    taken = int((folder / used).read_text()) - int(fields.get(cache, 0))
    return int((folder / limit).read_text()) - taken


def _available_bytes() -> int:
    """Return what the kernel can give without swapping."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return next(int(line[1]) for line in lines if line[0] == "MemAvailable:") << 10

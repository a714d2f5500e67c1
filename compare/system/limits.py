"""Read how much memory and CPU time this process may use.

Schedulers, containers and services limit both by control groups. Version 2 of control groups has one tree of
groups, and version 1 has a tree for each controller, such as ``cpu`` or ``memory``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path("/sys/fs/cgroup")
"""The folder in which the kernel shows the control groups."""
OWN_GROUPS = Path("/proc/self/cgroup")
"""The file that names the control groups of this process, one a line."""
_CGROUP_FILES = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""For each version, the files with the limit and the use of memory, and the cache's field in memory.stat."""


def group_folders(
    controller: str, root: Path = ROOT, own_groups: Path = OWN_GROUPS
) -> Iterator[tuple[Path, int]]:
    """Yield the folders of the control groups that limit this process, each with the version, 1 or 2.

    The parents of a group are included, because their limits hold as well. Inside a container, the kernel may
    report the path on the host, so some of the folders may not exist.
    """
    for line in own_groups.read_text().splitlines() if own_groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        group = root / controllers / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root):
                yield folder, 1 if controllers else 2


def core_quota(root: Path = ROOT, own_groups: Path = OWN_GROUPS) -> float | None:
    """Return the number of cores that control groups allow, or None if they set no limit.

    It may be a fraction, because the limit is one of CPU time.
    """
    quotas = []
    for folder, version in group_folders("cpu", root, own_groups):
        with suppress(OSError, ValueError, ZeroDivisionError):  # no such group, or no limit ("max")
            quota, period = (
                (folder / "cpu.max").read_text().split()
                if version == 2  # noqa: PLR2004 -- of the kernel's interface
                else [(folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")]
            )
            if int(quota) > 0:
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_left_bytes(root: Path = ROOT, own_groups: Path = OWN_GROUPS) -> int:
    """Return how many more bytes of memory this process may use.

    It is the minimum of what is free on the machine and what each control group leaves. File caches that the
    kernel can free count as free.
    """
    left = psutil.virtual_memory().available
    for folder, version in group_folders("memory", root, own_groups):
        with suppress(OSError, ValueError):  # no such group, or no limit ("max")
            limit, used, cache = _CGROUP_FILES[version]
            fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            taken = int((folder / used).read_text()) - int(fields.get(cache, 0))
            left = min(left, int((folder / limit).read_text()) - taken)
    return max(0, left)

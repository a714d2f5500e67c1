"""Read how much memory and CPU time this process may use.

Schedulers, containers and services limit both by control groups. Version 2 of control groups has one tree of
groups, and version 1 has a tree for each controller, such as ``cpu`` or ``memory``.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

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
    import psutil  # not by the witness of a rank, which stays small

    left = psutil.virtual_memory().available
    for folder, version in group_folders("memory", root, own_groups):
        with suppress(OSError, ValueError):  # no such group, or no limit ("max")
            limit, used, cache = _CGROUP_FILES[version]
            fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            taken = int((folder / used).read_text()) - int(fields.get(cache, 0))
            left = min(left, int((folder / limit).read_text()) - taken)
    return max(0, left)


def memory_limit_bytes(root: Path = ROOT, own_groups: Path = OWN_GROUPS) -> tuple[int, bool]:
    """Return how many bytes this process and its neighbours may use, and whether a control group says so.

    Without a control group that allows less, it is all the memory of the host.
    """
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    whole = int(lines["MemTotal"].split()[0]) * 1024
    least = whole
    for folder, version in group_folders("memory", root, own_groups):
        with suppress(OSError, ValueError):
            least = min(least, int((folder / _CGROUP_FILES[version][0]).read_text()))
    return least, least < whole


def address_limit_bytes() -> int | None:
    """Return how large this process's address space may grow (``ulimit -v``); None without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def oom_kills(root: Path = ROOT, own_groups: Path = OWN_GROUPS) -> int:
    """Return how many processes the kernel has killed in this control group because memory was short.

    It is 0 if no control group counts them.
    """
    for folder, version in group_folders("memory", root, own_groups):
        name = "memory.events" if version == 2 else "memory.oom_control"  # noqa: PLR2004 -- of the kernel's interface
        with suppress(OSError, ValueError, KeyError):
            counts = dict(line.split() for line in (folder / name).read_text().splitlines())
            return int(counts["oom_kill"])
    return 0

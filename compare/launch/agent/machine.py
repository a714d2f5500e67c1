"""Describe the machine of an agent, and find a free port."""

from __future__ import annotations

import ipaddress
import os
import platform
import socket
from collections.abc import Sequence
from contextlib import closing, suppress
from itertools import takewhile
from pathlib import Path

import psutil

from compare import __version__
from compare.launch.agent.protocol import Ready


def describe() -> Ready:
    """Describe this machine, as the first message of its agent."""
    return Ready(
        hostname=socket.gethostname(),
        python=platform.python_version(),
        version=__version__,
        addresses=addresses(),
        cpus=sorted(os.sched_getaffinity(0)),
        gpus=count_gpus(),
    )


def addresses() -> dict[str, list[str]]:
    """Return the IPv4 addresses and networks of interfaces that are up."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    return {
        name: [
            str(ipaddress.ip_interface(f"{a.address}/{a.netmask or 32}"))
            for a in found
            if a.family is socket.AF_INET
        ]
        for name, found in psutil.net_if_addrs().items()
        if name in up
    }


def count_gpus(driver: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """Count NVIDIA GPUs without torch.

    To load torch takes a second, and memory of a GPU.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = len(list(driver.glob("*")))
    if visible is None:
        return there
    # CUDA ignores every entry after the first negative number.
    named = takewhile(lambda name: not name.startswith("-"), map(str.strip, visible.split(",")))
    return min(there, len(list(filter(None, named))))


def memory_left_bytes(
    groups: Sequence[tuple[str, str]] = (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
) -> int:
    """Return how much memory processes may still take.

    Each group is a control group's files with its limit and its use.
    """
    left = psutil.virtual_memory().available
    for limit, used in groups:
        with suppress(OSError, ValueError):  # no such group, or no limit ("max")
            left = min(left, int(Path(limit).read_text()) - int(Path(used).read_text()))
    return left


def free_port() -> int:
    """Return a port that is free on every address.

    torchrun's default, 29500, clashes with other runs.
    """
    with closing(socket.socket()) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])

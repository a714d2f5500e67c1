"""Describe the machine of an agent, and find a free port."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import sysconfig
from contextlib import closing, suppress
from itertools import takewhile
from pathlib import Path

import psutil

from compare import __version__
from compare.errors import OutputError
from compare.launch.agent.protocol import Ready
from compare.system.files import temporary_root
from compare.system.limits import core_quota, memory_left_bytes


def describe() -> Ready:
    """Return the description of this machine that is its agent's first message."""
    return Ready(
        hostname=socket.gethostname(),
        version=__version__,
        addresses=addresses(),
        cpus=sorted(os.sched_getaffinity(0)),
        core_quota=core_quota(),
        gpus=count_gpus(),
        memory_left_bytes=memory_left_bytes(),
        cannot_compile=missing_for_compile(),
    )


def addresses() -> dict[str, list[str]]:
    """Return the IPv4 addresses, as 10.0.0.2/24, by the names of the interfaces that are up."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    return {
        name: [
            str(ipaddress.ip_interface(f"{a.address}/{a.netmask or 32}"))
            for a in of_interface
            if a.family is socket.AF_INET
        ]
        for name, of_interface in psutil.net_if_addrs().items()
        if name in up
    }


def count_gpus(driver: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """Return the number of NVIDIA GPUs that CUDA_VISIBLE_DEVICES leaves visible, without loading torch.

    Loading torch would take a second, and memory of a GPU. ``driver`` has an entry for each GPU.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    installed = len(list(driver.glob("*")))
    if visible is None:
        return installed
    # CUDA ignores every entry after the first negative number.
    listed = takewhile(lambda name: not name.startswith("-"), map(str.strip, visible.split(",")))
    return min(installed, len(list(filter(None, listed))))


def missing_for_compile() -> str:
    """Return what torch.compile lacks on this machine, as a clause; empty if it can compile."""
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler) is None:
        return f"there is no C++ compiler: {compiler} is not on PATH"
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        return f"there is no {header}"
    with suppress(OutputError):  # without a folder for temporary files, the launch says so
        # torch loads what it compiled from there.
        if os.statvfs(temporary_root()).f_flag & os.ST_NOEXEC:
            return f"{temporary_root()} is mounted noexec"
    return ""


def free_port() -> int:
    """Return a port that is free on every address of this machine.

    torchrun's default port, 29500, would clash with other runs.
    """
    with closing(socket.socket()) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])

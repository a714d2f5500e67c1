"""What the kernel says of this process: which ways to other processes it really holds open.

Libraries are configured to use a transport and sometimes take another. The kernel's tables of sockets
and mappings are independent of what any library says of itself.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

ONE_RANK = "none (one rank)"

_SEGMENT = re.compile(r"/dev/shm/(\S+)")  # noqa: S108 -- looked for, not written


def socket_interfaces(*, except_ports: tuple[int, ...] = ()) -> list[str]:
    """Name the network interfaces over which this process holds established TCP connections.

    Connections to or from ``except_ports`` do not count: a rendezvous store is no transport.
    """
    owner = {a.address: name for name, addresses in psutil.net_if_addrs().items() for a in addresses}
    seen = set()
    for connection in psutil.Process().net_connections("tcp"):
        if connection.status != psutil.CONN_ESTABLISHED or not connection.raddr:
            continue
        if connection.laddr.port in except_ports or connection.raddr.port in except_ports:
            continue
        address = connection.laddr.ip.removeprefix("::ffff:")
        seen.add(owner.get(address, address))
    return sorted(seen)


def shared_segments() -> list[str]:
    """Name the POSIX shared-memory segments that this process has mapped."""
    return sorted(set(_SEGMENT.findall(Path("/proc/self/maps").read_text())))


def tcp_transport(world_size: int, *, except_ports: tuple[int, ...] = ()) -> str:
    """Say over which interfaces the messages of a library that speaks TCP travel."""
    if world_size == 1:
        return ONE_RANK
    return _named(f"TCP over {name}" for name in socket_interfaces(except_ports=except_ports))


def mpi_transport(world_size: int) -> str:
    """Say how MPI's messages travel from this process.

    Open MPI keeps one connection to its daemon on this host, which carries no messages; it goes over
    the loopback interface, so that one counts only where nothing else is open.
    """
    if world_size == 1:
        return ONE_RANK
    ways = ["shared memory"] if any("vader" in name for name in shared_segments()) else []
    names = socket_interfaces()
    others = [name for name in names if name != "lo"]
    ways += [f"TCP over {name}" for name in others or ([] if ways else names)]
    return _named(ways)


def _named(ways: Iterable[str]) -> str:
    return ", ".join(ways) or "unknown: no connection to another rank was found"

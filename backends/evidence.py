"""Find the transports that this process really uses, in the kernel's tables.

A library may use another transport than its settings ask for. The kernel's tables of sockets and mapped
memory show which connections are really open.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import psutil

ONE_RANK = "none (one rank)"

_MPI_SEGMENT = re.compile(r".*vader|mpich_shm_")
"""Pattern of the names of shared-memory segments of Open MPI and of MPICH."""
_SEGMENT = re.compile(r"/dev/shm/(\S+)")  # noqa: S108 -- only read


def socket_interfaces(*, except_ports: tuple[int, ...] = ()) -> list[str]:
    """Return the sorted names of the network interfaces of this process's open TCP connections.

    A local address that belongs to no interface stands for itself. Connections to or from ``except_ports`` do
    not count, because a rendezvous store carries no gradients.
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
    """Return the sorted names of the POSIX shared-memory segments that this process maps."""
    return sorted(set(_SEGMENT.findall(Path("/proc/self/maps").read_text())))


def tcp_transport(world_size: int, *, except_ports: tuple[int, ...] = ()) -> str:
    """Return the transport of a library that uses TCP only, such as ``TCP over eth0``."""
    if world_size == 1:
        return ONE_RANK
    return _named(f"TCP over {name}" for name in socket_interfaces(except_ports=except_ports))


def mpi_library(printed: str) -> str:
    """Return name and version of an MPI, such as ``MPICH 5.0.2``.

    ``printed`` is the text of its ``MPI_Get_library_version``. It starts with "Open MPI v4.1.8, package: …"
    or "MPICH Version:      5.0.2".
    """
    first = printed.strip("\x00 \n").splitlines()[0].split(",")[0]
    return " ".join(first.replace("Version:", " ").split())


def mpi_transport(world_size: int) -> str:
    """Return the transports of MPI's messages from this process, such as ``shared memory, TCP over eth0``.

    Open MPI keeps a connection to its daemon on this host over the loopback interface, but sends no messages
    through it. So loopback counts only if no other transport is found. MPICH has no such connection.
    """
    if world_size == 1:
        return ONE_RANK
    ways = ["shared memory"] if any(_MPI_SEGMENT.match(name) for name in shared_segments()) else []
    names = socket_interfaces()
    others = [name for name in names if name != "lo"]
    ways += [f"TCP over {name}" for name in others or ([] if ways else names)]
    return _named(ways)


def _named(ways: Iterable[str]) -> str:
    return ", ".join(ways) or "unknown: no connection to another rank was found"

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
"""The transport of a group with a single rank."""

_MPI_SEGMENT = re.compile(r".*vader|mpich_shm_")
"""Pattern of the names of shared-memory segments of Open MPI and of MPICH."""
_MAPPED_SEGMENT = re.compile(r"/dev/shm/(\S+)")  # noqa: S108 -- only read


def socket_interfaces(*, except_ports: tuple[int, ...] = ()) -> list[str]:
    """Return the sorted names of the network interfaces of this process's open TCP connections.

    An address that belongs to no interface is returned in place of a name. Connections to or from the ports
    ``except_ports`` are left out. A caller names the port of torch's store, which carries no gradients.
    """
    interfaces = {a.address: name for name, addresses in psutil.net_if_addrs().items() for a in addresses}
    names = set()
    for connection in psutil.Process().net_connections("tcp"):
        if connection.status != psutil.CONN_ESTABLISHED or not connection.raddr:
            continue
        if connection.laddr.port in except_ports or connection.raddr.port in except_ports:
            continue
        address = connection.laddr.ip.removeprefix("::ffff:")
        names.add(interfaces.get(address, address))
    return sorted(names)


def shared_segments() -> list[str]:
    """Return the sorted names of the POSIX shared-memory segments that this process maps."""
    return sorted(set(_MAPPED_SEGMENT.findall(Path("/proc/self/maps").read_text())))


def tcp_transport(world_size: int, *, except_ports: tuple[int, ...] = ()) -> str:
    """Return the transport of a library that uses only TCP, such as ``TCP over eth0``.

    Connections to or from ``except_ports`` do not count.
    """
    if world_size == 1:
        return ONE_RANK
    return _joined(f"TCP over {name}" for name in socket_interfaces(except_ports=except_ports))


def mpi_library(version_text: str) -> str:
    """Return the name and version of an MPI library, such as ``MPICH 5.0.2``.

    ``version_text`` is what the library's ``MPI_Get_library_version`` returns. It starts with
    "Open MPI v4.1.8, package: …" or "MPICH Version:      5.0.2".
    """
    name = version_text.strip("\x00 \n").splitlines()[0].split(",")[0]
    return " ".join(name.replace("Version:", " ").split())


def mpi_transport(world_size: int) -> str:
    """Return the transports of this process's MPI messages, such as ``shared memory, TCP over eth0``.

    Open MPI keeps a connection to its daemon on this host over the loopback interface, but sends no messages
    through it. So loopback counts only if no other transport is found. MPICH has no such connection.
    """
    if world_size == 1:
        return ONE_RANK
    transports = ["shared memory"] if any(_MPI_SEGMENT.match(name) for name in shared_segments()) else []
    names = socket_interfaces()
    not_loopback = [name for name in names if name != "lo"]
    transports += [f"TCP over {name}" for name in not_loopback or ([] if transports else names)]
    return _joined(transports)


def _joined(transports: Iterable[str]) -> str:
    return ", ".join(transports) or "unknown: no connection to another rank was found"

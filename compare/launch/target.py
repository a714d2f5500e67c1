"""Open the hosts that a run was asked for."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from compare.errors import UsageError
from compare.launch.local import ThisMachine
from compare.schema.hosts import LOOPBACK, Host, is_local
from compare.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from compare.launch.engines import Carrier
    from compare.launch.local import Site


@contextmanager
def open_site(
    hosts: tuple[Host, ...], *, carrier: Carrier, interface: str | None, exported: Mapping[str, str]
) -> Iterator[Site]:
    """Open the way to all hosts of a run for as long as the block lasts; to this machine there is none.

    Raises:
        HostError: a host cannot be reached, or has another version.
        UsageError: it cannot be told which network interface to take.
    """
    if all(map(is_local, hosts)):
        _require_interface(interface or LOOPBACK)
        yield ThisMachine(hosts, allowed_cpus(), exported, interface or LOOPBACK)
        return
    from compare.launch.cluster import many_hosts  # only here: most runs need no ssh

    with many_hosts(
        hosts, python=sys.executable, carrier=carrier, interface=interface, exported=exported
    ) as site:
        yield site


def _require_interface(name: str) -> None:
    there = [interface for _, interface in socket.if_nameindex()]
    if name not in there:
        raise UsageError(
            f"--interface {name}: this machine has no such interface.",
            found=f"It has {', '.join(there)}.",
            remedy="Name one of these, or leave --interface out.",
        )


def topology(site: Site) -> list[str]:
    """Say in lines what is understood of the hosts, before anything is started."""
    network = site.network
    lines = [
        f"{host.name}: {counted(host.slots, 'rank')}, {counted(len(cpus), 'CPU')}, {address}"
        for host, cpus, address in zip(site.hosts, site.cpus(), network.addresses, strict=True)
    ]
    where = "" if network.network in {network.interface, ""} else f" ({network.network})"
    return [*lines, f"all over {network.interface}{where}; the ranks meet at {network.addresses[0]}"]


def allowed_cpus() -> list[int]:
    """CPUs that this process, and so every rank, may use."""
    return sorted(os.sched_getaffinity(0))

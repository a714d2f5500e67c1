"""Say what the hosts of a run have, and how they reach each other.

Agents report these facts when they start. A plan assumes them instead, because it asks no host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from compare.errors import HostError, UnavailableError
from compare.launch.agent.machine import describe
from compare.launch.agent.protocol import Ready
from compare.launch.engines import Allocation, ScheduledJob
from compare.launch.network import in_network, network_of_one
from compare.schema.hosts import Host, Network, is_local
from compare.text import counted

INTERFACE = "INTERFACE"
"""Placeholder for the name of the interface, which only the hosts themselves could give."""


@dataclass(eq=False)
class HostFacts:
    """The facts of the hosts of a run."""

    hosts: tuple[Host, ...]
    """The hosts in the order of ranks, each with as many slots as it has ranks."""
    machines: list[Ready]
    """Each host's machine, as its agent described it at its start."""
    network: Network
    exported: Mapping[str, str]
    """Environment variables of the ranks, which are passed on in private files only."""
    job: ScheduledJob | None = None
    """The scheduler's job that the hosts belong to; None if the engine knows of none."""
    this_machine: Ready | None = None
    """The machine that starts mpirun and horovodrun; None in a plan, which does not know their network."""

    @property
    def is_this_machine(self) -> bool:
        """Whether this machine is the only host."""
        return not self.network.network

    def cores(self) -> list[int]:
        """Return for each host how many CPUs its ranks may keep busy.

        It may be fewer than the ranks see, because of a container's quota or the share of a scheduler's job.
        """
        job = self.job
        counts = [max(1, int(min(len(m.cpus), m.core_quota or math.inf))) for m in self.machines]
        return [job.share(host, n) if job else n for host, n in zip(self.hosts, counts, strict=True)]

    def launches_at_once(self) -> int:
        """Return how many launches may start at a time.

        While a launch starts, every rank loads libraries on a core of its own, so the cores limit the number.
        One launch more may start, because its launcher loads libraries on one core before its ranks do.
        """
        return 1 + min(
            cores // (self._sharing * host.slots)
            for host, cores in zip(self.hosts, self.cores(), strict=True)
        )

    def memory_left(self) -> list[int]:
        """Return for each host how many bytes of memory its ranks may take.

        Hosts of a rehearsal share that of one machine equally.
        """
        return [machine.memory_left_bytes // self._sharing for machine in self.machines]

    @property
    def _sharing(self) -> int:
        """Number of hosts that share one machine, as those of a rehearsal do."""
        return len(self.hosts) if self.network.rehearsed else 1

    def topology(self) -> list[str]:
        """Return lines that describe the hosts, one for each, and a last line for their network."""
        network = self.network
        lines = [
            f"{host.name}: {counted(host.slots, 'rank')}, {counted(cores, 'CPU')}, {address}"
            for host, cores, address in zip(self.hosts, self.cores(), network.addresses, strict=True)
        ]
        where = "" if network.network in {network.interface, ""} else f" ({network.network})"
        return [*lines, f"all over {network.interface}{where}; the ranks meet at {network.addresses[0]}"]

    def require_launchers(self, names: set[str]) -> None:
        """Require that hosts can connect to the launchers that run on this machine.

        ``names`` are the launchers of all arms. torchrun runs on every host, so it needs no such connection.

        Raises:
            HostError: this machine is not on the network of the hosts.
        """
        if self.this_machine is None or self.is_this_machine or not names - {"torchrun"}:
            return
        network = self.network
        mine = self.this_machine.addresses.get(network.interface, [])
        if not any(in_network(address, network) for address in mine):
            raise HostError(
                f"This machine has no address on {network.interface} in {network.network}.",
                found=f"It has {', '.join(mine) or 'none'} there, but mpirun and horovodrun run on this "
                "machine, and the hosts connect back to them.",
                remedy="Start Ringside on a host of the run, name another --interface, or compare only arms "
                "that torchrun starts, such as ddp and manual.",
            )

    def require_compilers(self) -> None:
        """Require that torch.compile can compile on every host, unless ``-x CXX`` names the compiler.

        Raises:
            UnavailableError: a host lacks a C++ compiler, Python's header, or a folder for programs.
        """
        for host, machine in zip(self.hosts, self.machines, strict=True):
            if machine.cannot_compile and "CXX" not in self.exported:
                raise UnavailableError(
                    f"torch.compile cannot compile on host {host.name}.",
                    found=f"{machine.cannot_compile[:1].upper()}{machine.cannot_compile[1:]}.",
                    remedy="Install what is missing there, for example: apt-get install g++ python3-dev. Or "
                    "name another compiler with -x CXX=NAME, set TMPDIR to another folder, or leave out "
                    "--compile.",
                )


def assume_facts(
    allocation: Allocation, *, interface: str | None, exported: Mapping[str, str], with_gpus: bool
) -> HostFacts:
    """Return the facts of hosts as the user named them, without asking one.

    Every other host is assumed to be a machine like this one. It has one GPU for each of its ranks if
    ``with_gpus`` is set, and otherwise none.

    Raises:
        UsageError: this machine is the only host, and has no such ``interface``.
    """
    hosts, _, _, job, rehearsed = allocation
    here = describe()
    machines = [
        here if is_local(host) else msgspec.structs.replace(here, gpus=host.slots * with_gpus)
        for host in hosts
    ]
    if all(map(is_local, hosts)):
        network = network_of_one(here.addresses, asked=interface)
    else:
        name = interface or INTERFACE
        addresses = tuple(here.hostname if is_local(host) else host.name for host in hosts)
        network = Network(interface=name, network=name, addresses=addresses, rehearsed=rehearsed)
    return HostFacts(hosts, machines, network, exported, job)

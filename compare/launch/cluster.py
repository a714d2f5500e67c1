"""Connect to the hosts of a run, with an agent on each, and say what these hosts have.

A run on one machine has one host, and its agent is a child process. A run on many hosts has an agent on each
of them, and one on this machine too, because mpirun and horovodrun start on this machine. Launches treat both
cases in the same way: see ``running.py``. Agents report the facts of their hosts when they start. A dry run
asks no host, so it assumes the facts instead.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from compare.data import DatasetSource
from compare.errors import HostError, RingsideError, UnavailableError
from compare.launch.agent.connection import ANSWER_SECONDS, START_SECONDS, Connection
from compare.launch.agent.exchange import connected, exchange_until
from compare.launch.agent.machine import describe
from compare.launch.agent.protocol import Ready
from compare.launch.circumstances import Defect
from compare.launch.engines import Allocation, Carrier, ScheduledJob
from compare.launch.engines.commands import join_errors
from compare.launch.network import (
    addresses_of,
    choose_network,
    in_network,
    network_of_one_machine,
    require_distinct,
)
from compare.launch.staging import stage
from compare.schema.hosts import Host, Link, Network, is_local, local_host
from compare.schema.job import Job, LaunchJob
from compare.text import counted, listed

_LISTED_HOSTS = 8
_SLOW_START_SECONDS = 10.0
"""Time after which hosts that have not started are named, because one that hangs is given up much later."""
INTERFACE = "INTERFACE"
"""Placeholder in a dry run for the network interface's name, which only the hosts could tell."""


@dataclass(eq=False)
class HostFacts:
    """What is known about the hosts of a run: their machines, and the network between them."""

    hosts: tuple[Host, ...]
    """The hosts in the order of ranks, each with as many slots as it has ranks."""
    machines: list[Ready]
    """Each host's machine, as its agent described it at its start, or as a dry run assumes it."""
    network: Network
    exported: Mapping[str, str]
    """Environment variables of the ranks, which are passed on in private files only."""
    job: ScheduledJob | None = None
    """The scheduler's job that the hosts belong to; None if the engine knows of none."""
    this_machine: Ready | None = None
    """The machine that starts mpirun and horovodrun; None in a dry run, which asks no host."""

    @property
    def is_only_this_machine(self) -> bool:
        """Whether this machine is the only host."""
        return not self.network.network

    def cores(self) -> list[int]:
        """Return the number of CPUs that the ranks of each host may keep busy, in the order of hosts.

        It may be fewer than the ranks see, because of a container's quota or the share of a scheduler's job.
        """
        job = self.job
        counts = [max(1, int(min(len(m.cpus), m.core_quota or math.inf))) for m in self.machines]
        return [job.share(host, n) if job else n for host, n in zip(self.hosts, counts, strict=True)]

    def launches_at_once(self) -> int:
        """Return how many launches may start at the same time.

        While a launch starts, every rank loads libraries on a core of its own, so the cores limit the number.
        One launch more may start, because its launcher loads libraries on one core before its ranks do.
        """
        return 1 + min(
            cores // (self.hosts_per_machine * host.slots)
            for host, cores in zip(self.hosts, self.cores(), strict=True)
        )

    def memory_left(self) -> list[int]:
        """Return the bytes of memory that the ranks of each host may take, in the order of hosts.

        The hosts of a rehearsal share the memory of one machine equally.
        """
        return [machine.memory_left_bytes // self.hosts_per_machine for machine in self.machines]

    @property
    def hosts_per_machine(self) -> int:
        """Number of hosts on each machine: all hosts of a rehearsal are on one, other hosts are alone."""
        return len(self.hosts) if self.network.rehearsed else 1

    def topology(self) -> list[str]:
        """Return one line for each host, with its ranks, CPUs and address, and a last one for the network.

        Only the first eight hosts have a line of their own.
        """
        network = self.network
        lines = [
            f"{host.name}: {counted(host.slots, 'rank')}, {counted(cores, 'CPU')}, {address}"
            for host, cores, address in zip(self.hosts, self.cores(), network.addresses, strict=True)
        ]
        where = "" if network.network in {network.interface, ""} else f" ({network.network})"
        if more := lines[_LISTED_HOSTS:]:
            lines[_LISTED_HOSTS:] = [f"and {counted(len(more), 'more host')}"]
        return [*lines, f"all over {network.interface}{where}; the ranks meet at {network.addresses[0]}"]

    def require_launchers(self, names: set[str]) -> None:
        """Require that the hosts can connect back to the launchers that run on this machine.

        ``names`` are the launchers of all arms. torchrun runs on every host, so it needs no such connection.
        A dry run requires nothing.

        Raises:
            HostError: this machine is not on the network of the hosts.
        """
        if self.this_machine is None or self.is_only_this_machine or not names - {"torchrun"}:
            return
        network = self.network
        addresses = self.this_machine.addresses.get(network.interface, [])
        if not any(in_network(address, network) for address in addresses):
            raise HostError(
                f"This machine has no address on {network.interface} in {network.network}.",
                found=f"It has {', '.join(addresses) or 'none'} there, but mpirun and horovodrun run on this "
                "machine, and the hosts connect back to them.",
                remedy="Start Ringside on a host of the run, name another interface with --engine "
                "auto:interface=NAME, or compare only arms that torchrun starts, such as ddp and manual.",
            )

    def require_compilers(self) -> None:
        """Require that torch.compile can compile on every host; with ``-x CXX=NAME`` nothing is checked.

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
    """Return facts of the allocated hosts for a dry run, without asking any of them.

    Every other host is assumed to be like this machine, but with one GPU for each of its ranks if
    ``with_gpus`` is set, and otherwise with none.

    Raises:
        UsageError: this machine is the only host, and has no such ``interface``.
    """
    hosts, _, _, job, rehearsed, *_ = allocation
    here = describe()
    machines = [
        here if is_local(host) else msgspec.structs.replace(here, gpus=host.slots * with_gpus)
        for host in hosts
    ]
    if all(map(is_local, hosts)):
        network = network_of_one_machine(here.addresses, asked=interface)
    else:
        name = interface or INTERFACE
        addresses = tuple(here.hostname if is_local(host) else host.name for host in hosts)
        network = Network(interface=name, network=name, addresses=addresses, rehearsed=rehearsed)
    return HostFacts(hosts, machines, network, exported, job)


@contextmanager
def open_cluster(
    allocation: Allocation,
    *,
    interface: str | None,
    exported: Mapping[str, str],
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Cluster]:
    """Start an agent on every host, yield the cluster, and end the agents after the block.

    Without ``interface``, a network interface is chosen that all hosts share. ``exported`` holds environment
    variables of the ranks, which are passed on in private files only. ``say`` prints a line about hosts that
    are slow to start.

    Raises:
        HostError: a host cannot be reached, has another version, or sees too little of the job.
        UsageError: the network interface is missing or cannot be chosen, or two hosts are one machine.
    """
    hosts, carrier, _, job, rehearsed, *_ = allocation
    # mpirun and horovodrun start on this machine, also where it is no host of the run.
    launcher_hosts = () if any(map(is_local, hosts)) else (local_host(1),)
    lost: dict[Connection, RingsideError] = {}
    with connected((*hosts, *launcher_hosts), carrier, lost=lost) as everyone:
        _require_ready(everyone, lost, len(hosts), say)
        agents = everyone[: len(hosts)]
        for agent in agents:
            if job and agent.ready:
                job.require_share(agent.host, len(agent.ready.cpus), agent.ready.gpus)
        local_agent = next(agent for agent in reversed(everyone) if is_local(agent.host))
        machines = [agent.ready for agent in agents if agent.ready]
        network = _find_network(agents, interface, rehearsed)
        facts = (hosts, machines, network, exported, job, local_agent.ready)
        yield Cluster(*facts, agents=agents, local_agent=local_agent, carrier=carrier)


@dataclass(eq=False, kw_only=True)
class Cluster(HostFacts):
    """The hosts of a run with their agents; made by ``open_cluster``."""

    agents: Sequence[Connection]
    """The connections to the hosts' agents, in the order of ranks."""
    local_agent: Connection
    """The connection to the agent of this machine, which is one of ``agents`` if this machine is a host."""
    carrier: Carrier
    """How processes are started on the hosts."""
    defects: Callable[[], Sequence[Defect]] = tuple
    """Returns the defects that the check at the start found on these hosts; nothing before that check."""
    _datasets: list[str] = field(default_factory=list, init=False)
    """The folder of the data set on each host, in the order of ranks; empty before ``stage``."""

    @property
    def all_agents(self) -> list[Connection]:
        """The connections to all agents of the run, each once, with that of this machine."""
        return list(dict.fromkeys([*self.agents, self.local_agent]))

    def stage(self, source: DatasetSource, say: Callable[[str], None]) -> None:
        """Find the data set on every host, or copy it there, and keep its folders for ``job_for``.

        ``say`` receives a line of text before the data set is copied.

        Raises:
            HostError: the data set cannot be copied to a host.
        """
        self._datasets = stage(self.hosts, source, python=sys.executable, carrier=self.carrier, say=say)

    def free_port(self) -> int:
        """Return a port that is free now on the first host.

        Raises:
            HostError: the host was lost, or does not answer.
        """
        first = self.agents[0]
        first.find_port()
        self.wait(lambda: first.port is not None, [first])
        assert first.port is not None  # noqa: S101 -- it was waited for
        return first.port

    def wait(self, until: Callable[[], bool], agents: Sequence[Connection]) -> None:
        """Exchange messages with all agents until ``until`` returns True, to which ``agents`` must answer.

        Raises:
            HostError: a host was lost, or the condition does not hold within 80 s.
        """
        seconds = START_SECONDS + ANSWER_SECONDS
        if not exchange_until(self.all_agents, until, seconds):
            name = agents[0].host.name
            raise HostError(
                f"Host {name} does not answer.",
                found=f"Its agent is connected, but sent no answer for {seconds:g} s.",
                remedy="Is it overloaded, or its disk stuck? Examine it with `ringside doctor`, or leave it "
                f"out: -H ^{name}.",
            )

    def job_for(self, agent: Connection, job: LaunchJob, ranks: Sequence[int]) -> LaunchJob:
        """Return a copy of the job with the CPUs, the data set's folder and the clock of the agent's host.

        Of fingerprints it has only those of ``ranks``, which run on that host, because all of them on every
        host would grow with the square of the number of hosts.
        """
        number = list(self.agents).index(agent)
        host_job = msgspec.structs.replace(
            job, affinity=self.machines[number].cpus, launched_at=job.launched_at + agent.clock_ahead_seconds
        )
        if not isinstance(host_job, Job):
            return host_job
        dataset = msgspec.structs.replace(host_job.dataset, directory=self._datasets[number])
        proven = {rank: host_job.proven[rank] for rank in ranks if rank in host_job.proven}
        return msgspec.structs.replace(host_job, dataset=dataset, proven=proven)


def _require_ready(
    agents: Sequence[Connection],
    lost: dict[Connection, RingsideError],
    host_count: int,
    say: Callable[[str], None],
) -> None:
    """Wait for every agent's first message, or raise one error for all of ``host_count`` that fail.

    ``lost`` has the errors of agents that have failed already. ``say`` names the hosts that are slow.
    """

    def late() -> list[str]:
        return [agent.host.name for agent in agents if not (agent.ready or agent in lost)]

    if not exchange_until(agents, lambda: not late(), _SLOW_START_SECONDS, lost=lost):
        left = START_SECONDS - _SLOW_START_SECONDS
        say(f"Waiting until Ringside has started on {listed(late())}, at most {left:g} s more.")
        # Each connection has a time limit of its own, after which it is lost.
        exchange_until(agents, lambda: not late(), math.inf, lost=lost)
    host_errors = [error for error in lost.values() if isinstance(error, HostError)]
    if host_errors:
        raise join_errors(host_errors, of=host_count)
    for error in lost.values():
        raise error


def _find_network(agents: Sequence[Connection], interface: str | None, rehearsed: Link | None) -> Network:
    """Return the network of the hosts, on ``interface`` if the user named one."""
    hosts = [agent.host for agent in agents]
    addresses = {agent.host.name: agent.ready.addresses for agent in agents if agent.ready}
    if all(map(is_local, hosts)):
        return network_of_one_machine(addresses[hosts[0].name], asked=interface)
    require_distinct([(agent.host, agent.ready) for agent in agents if agent.ready])
    # No name server knows the hosts of a rehearsal.
    reached_at = [""] * len(hosts) if rehearsed else addresses_of([host.name for host in hosts])
    network = choose_network(addresses, asked=interface, reached_at=reached_at)
    return msgspec.structs.replace(network, rehearsed=rehearsed)

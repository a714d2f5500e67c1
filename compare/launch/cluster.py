"""Connect to the hosts of a run, with an agent on each.

A run on one machine has one host, and its agent is a child process. A run on many hosts has an agent on each
of them, and one on this machine too, because mpirun and horovodrun start on this machine. Launches treat both
cases in the same way: see ``place.py``.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec

from compare.data import DatasetSource
from compare.errors import HostError, RingsideError
from compare.launch.agent.connection import ANSWER_SECONDS, START_SECONDS, Connection, attend, connected
from compare.launch.circumstances import Defect
from compare.launch.engines import Allocation, Carrier, ScheduledJob
from compare.launch.engines.commands import enough_files, join_errors
from compare.launch.host_facts import HostFacts
from compare.launch.network import addresses_of, choose_network, network_of_one, require_distinct
from compare.launch.staging import stage
from compare.schema.hosts import Link, Network, is_local, local_host
from compare.schema.job import Job, LaunchJob


@contextmanager
def open_cluster(
    allocation: Allocation,
    *,
    interface: str | None = None,
    exported: Mapping[str, str] | None = None,
) -> Iterator[Cluster]:
    """Start an agent on every host, yield the cluster, and end the agents after the block.

    Without ``interface``, the one that all hosts share is chosen. ``exported`` holds environment variables of
    the ranks, which are passed on in private files only.

    Raises:
        HostError: a host cannot be reached, has another version, or sees too little of the job.
        UsageError: the network interface is missing or cannot be chosen, or two hosts are one machine.
    """
    hosts, carrier, _, job, rehearsed = allocation
    # mpirun and horovodrun start on this machine, also where it is no host of the run.
    beside = () if any(map(is_local, hosts)) else (local_host(1),)
    environment = dict(os.environ)  # libraries that load later may change it, but not between arms
    connect_to = partial(connected, python=sys.executable, environment=environment, carrier=carrier)
    with enough_files(len(hosts)), connect_to(hosts) as agents, connect_to(beside) as own:
        _require_ready([*agents, *own], len(hosts))
        for agent in agents:
            if job and agent.ready:
                job.require_share(agent.host, len(agent.ready.cpus), agent.ready.gpus)
        yield Cluster(
            agents,
            next(agent for agent in (*own, *agents) if is_local(agent.host)),
            network=_network(agents, interface, rehearsed),
            exported=exported or {},
            carrier=carrier,
            job=job,
        )


class Cluster(HostFacts):
    """The hosts of a run with their agents; made by ``open_cluster``.

    ``agents`` are the connections to the hosts' agents, in the order of ranks. ``here`` is the connection to
    the agent of this machine, which may be one of them.
    """

    def __init__(
        self,
        agents: Sequence[Connection],
        here: Connection,
        *,
        network: Network,
        exported: Mapping[str, str],
        carrier: Carrier,
        job: ScheduledJob | None = None,
    ) -> None:
        hosts, machines = tuple(agent.host for agent in agents), [a.ready for a in agents if a.ready]
        super().__init__(hosts, machines, network, exported, job, here.ready)
        self.agents, self.here, self.carrier = agents, here, carrier
        self.attended = list(dict.fromkeys([*agents, here]))
        """All agents of the run, each once."""
        self.defects: Callable[[], Sequence[Defect]] = tuple
        """Returns what the check at the start found on these hosts; nothing before that check."""
        self._datasets: list[str] = []

    def stage(self, source: DatasetSource, say: Callable[[str], None]) -> None:
        """Find the data set on every host, or copy it there, and remember its folders.

        ``say`` receives a line before a copy.

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
        """Exchange messages until a condition holds that these agents should bring about.

        Raises:
            HostError: a host was lost, or the condition does not hold within 80 s.
        """
        seconds = START_SECONDS + ANSWER_SECONDS
        if not attend(self.attended, until, seconds):
            name = agents[0].host.name
            raise HostError(
                f"Host {name} does not answer.",
                found=f"Its agent is connected, but sent no answer for {seconds:g} s.",
                remedy="Is it overloaded, or its disk stuck? Examine it with `compare doctor`, or leave it "
                f"out: --exclude {name}.",
            )

    def job_for(self, agent: Connection, job: LaunchJob) -> LaunchJob:
        """Return a copy of the job with the CPUs, the data set's folder and the clock of one host."""
        number = list(self.agents).index(agent)
        own = msgspec.structs.replace(
            job, affinity=self.machines[number].cpus, launched_at=job.launched_at + agent.clock_ahead_seconds
        )
        if not isinstance(own, Job):
            return own
        dataset = msgspec.structs.replace(own.dataset, directory=self._datasets[number])
        return msgspec.structs.replace(own, dataset=dataset)


def _require_ready(agents: Sequence[Connection], hosts: int) -> None:
    """Wait for the first message of every agent, so that one error names all failed hosts."""
    lost: dict[Connection, RingsideError] = {}
    # Each connection has a time limit of its own, after which it is lost.
    attend(agents, lambda: all(agent.ready or agent in lost for agent in agents), math.inf, lost=lost)
    troubles = [error for error in lost.values() if isinstance(error, HostError)]
    if troubles:
        raise join_errors(troubles, of=hosts)
    for error in lost.values():
        raise error


def _network(agents: Sequence[Connection], interface: str | None, rehearsed: Link | None) -> Network:
    hosts = [agent.host for agent in agents]
    addresses = {agent.host.name: agent.ready.addresses for agent in agents if agent.ready}
    if all(map(is_local, hosts)):
        return network_of_one(addresses[hosts[0].name], asked=interface)
    require_distinct([(agent.host, agent.ready) for agent in agents if agent.ready])
    # No name server knows the hosts of a rehearsal.
    reached_at = [""] * len(hosts) if rehearsed else addresses_of([host.name for host in hosts])
    network = choose_network(addresses, asked=interface, reached_at=reached_at)
    return msgspec.structs.replace(network, rehearsed=rehearsed)

"""Describe the hosts of a plan without connecting to them."""

from __future__ import annotations

import itertools
import socket
import uuid
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from backends.launchers.request import Command
from compare.launch.agent.machine import describe
from compare.launch.agent.protocol import Ready
from compare.launch.arm import commands_for
from compare.launch.cluster import Cluster
from compare.launch.engines import Allocation
from compare.launch.network import network_of_one
from compare.launch.place import LaunchPlace
from compare.schema.hosts import Network, is_local
from compare.schema.job import Job
from compare.schema.launch_files import LaunchFiles

INTERFACE = "INTERFACE"
"""Placeholder for the name of the interface, which only the hosts themselves could give."""
_PORT = 29500
"""The port that torchrun takes by default."""


class PlannedLaunch(NamedTuple):
    """What a plan shows of a launch: its job and its commands."""

    job: Job
    """The job that every rank would read."""
    commands: list[Command]
    """One for each host if the launcher runs on all of them, as torchrun does; otherwise one in all."""


class Unreached(Cluster):
    """A cluster of hosts as the user named them, without agents and connections.

    Every other host is assumed to be a machine like this one. It has one GPU for each of its ranks if
    ``with_gpus`` is set, and otherwise none.
    """

    def __init__(
        self,
        allocation: Allocation,
        *,
        interface: str | None,
        exported: Mapping[str, str],
        with_gpus: bool,
    ) -> None:
        self.hosts, self._carrier, _, self.job, rehearsed = allocation
        self.is_this_machine = all(map(is_local, self.hosts))
        self.exported = exported
        self.agents = []
        here = describe()
        self._ready = [here if is_local(host) else _like(here, host.slots * with_gpus) for host in self.hosts]
        self._name = f"ringside-{uuid.uuid4().hex[:8]}"
        self._launches = itertools.count(1)
        if self.is_this_machine:
            self.network = network_of_one(here.addresses, asked=interface)
        else:
            name = interface or INTERFACE
            addresses = tuple(here.hostname if is_local(host) else host.name for host in self.hosts)
            self.network = Network(interface=name, network=name, addresses=addresses, rehearsed=rehearsed)

    def planned(self, job: Job, files: LaunchFiles) -> PlannedLaunch:
        """Return the job, and the commands that would launch its arm.

        Raises:
            UnavailableError: the arm's launcher is not installed.
        """
        place = LaunchPlace(self, files)
        return PlannedLaunch(job, commands_for(job.config, job.arm, place, place.settings()))

    def free_port(self) -> int:
        """Return a free port of this machine; for other hosts, torchrun's default port, unchecked."""
        if not self.is_this_machine:
            return _PORT
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            return int(listening.getsockname()[1])

    def require_launchers(self, names: set[str]) -> None:
        """Accept all launchers, because the networks of the hosts are unknown."""


def _like(ready: Ready, gpus: int) -> Ready:
    return msgspec.structs.replace(ready, gpus=gpus)

"""Plan a run: what it would start, where, and for how long."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import NamedTuple

from compare import data
from compare.experiment.rounds import choose_interleaving
from compare.experiment.schedule import least_round_seconds, order_of
from compare.experiment.settle import UserRequest, settle
from compare.launch.agent.machine import free_port
from compare.launch.arm import LaunchPlan, launch_files, plan_launch
from compare.launch.host_facts import INTERFACE, HostFacts, assume_facts
from compare.launch.place import LaunchFolders
from compare.schema.config import RunConfig
from compare.schema.job import Job, Planned
from compare.schema.store import default_output
from compare.text import counted

_PORT = 29500
"""The port that torchrun takes by default, which stands for a free port of another host."""


class Plan(NamedTuple):
    """What a run would do, without asking other hosts."""

    config: RunConfig
    round_seconds: float
    """Minimum time of a round."""
    in_turns: bool
    """Whether the arms of a round would train in turns."""
    notes: list[str]
    """Sentences about what is not known, and what is assumed."""
    launches: list[LaunchPlan]
    """The launches of the first round, in order."""


def plan(request: UserRequest) -> Plan:
    """Return the plan of a run's first round, without asking other hosts or launching an arm.

    Raises:
        RingsideError: the request cannot be settled.
    """
    hosts = assume_facts(
        request.allocation,
        interface=request.interface,
        exported=request.exported,
        with_gpus=request.config["device"] == "cuda",
    )
    config, _ = settle(request, hosts)
    directory = Path(os.path.realpath(request.output or default_output(config)))
    source = request.own or data.expect(request.dataset, request.data_dir or data.default_root())
    make_job = partial(Job, dataset=source)
    launches = []
    for number, arm in enumerate(order_of(config, 1), start=1):
        planned = Planned(number, 1, arm)
        folders = LaunchFolders(hosts, launch_files(directory, planned))
        port = free_port() if hosts.is_this_machine else _PORT
        launches.append(plan_launch(config, planned, folders, port, make_job))
    mode = choose_interleaving(config).mode
    return Plan(
        config, least_round_seconds(config, mode), mode == "blocks", _notes(request, hosts, source), launches
    )


def _notes(request: UserRequest, hosts: HostFacts, source: data.DatasetSource) -> list[str]:
    notes = [f"Hosts: {request.allocation.source}"]
    if source.note:
        notes.append(source.note)
    if not hosts.is_this_machine:
        cpus = counted(len(hosts.machines[0].cpus), "CPU")
        gpus = "a GPU for each rank" if request.config["device"] == "cuda" else "no GPU"
        notes.append(f"No host was asked. Each is taken for one like this machine, with {cpus} and {gpus}.")
        if request.interface is None:
            notes.append(f"{INTERFACE} stands for the network interface that all hosts share.")
    return notes

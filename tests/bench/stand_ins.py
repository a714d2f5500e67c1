"""Compare arms on hosts whose agents are stand-ins, with all of the parent as it is."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import msgspec

from compare.experiment.run import carry_out, new_run
from compare.launch.cluster import open_cluster
from compare.launch.engines import Allocation
from compare.launch.engines.ssh import Ssh
from compare.schema.arms import parse_arms
from compare.schema.config import RunConfig
from compare.schema.hosts import Host
from tests.bench.host_agents import CONNECT, Plan, name_of
from tests.comparing import ROOT
from tests.unit.factories import MNIST


class StandIn(Ssh, frozen=True, kw_only=True):
    """Starts a stand-in agent where ssh would start a real one, also for this machine."""

    socket: str

    def argv(self, host, argv):
        if "compare.launch.staging" in argv:  # every host has the data set
            return ("echo", msgspec.json.encode({"directory": MNIST.directory, "cache": ""}).decode())
        return (sys.executable, "-I", "-S", "-c", CONNECT, self.socket, host.name)


@contextmanager
def stand_in_hosts(count: int, plan: Plan):
    """Yield the allocation of so many hosts, and end them all after the block."""
    with tempfile.TemporaryDirectory(prefix="ringside-stand-in-") as folder:
        path, file = Path(folder, "socket"), Path(folder, "plan.json")
        file.write_bytes(msgspec.json.encode(plan))
        command = [sys.executable, "-m", "tests.bench.host_agents", str(path), str(file)]
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as served:
            assert served.stdout.readline() == "ready\n"
            hosts = tuple(Host(name_of(number), plan.ranks) for number in range(count))
            yield Allocation(hosts, StandIn(socket=str(path)))
            served.communicate(timeout=20)


def compare_on(allocation: Allocation, arms: str, observer, directory: Path, *, rounds: int, **settings):
    """Compare arms on the hosts of an allocation, and return the run."""
    parsed = parse_arms([arms])
    config = RunConfig(
        arms=parsed,
        baseline=next(arm.label for arm in parsed if arm.backend != "none"),
        ranks=sum(host.slots for host in allocation.hosts),
        batch_size_per_rank=1,
        steps=100,
        warmup_steps=10,
        rounds=rounds,
        interleave="blocks",
        **settings,
    )
    directory.mkdir(parents=True)
    with open_cluster(allocation, interface=None, exported={}) as cluster:
        cluster.stage(MNIST, print)
        return carry_out(new_run(config, MNIST, cluster, {}, []), directory, cluster, observer)

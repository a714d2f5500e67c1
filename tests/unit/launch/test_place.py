"""Test how the agents of hosts carry out one launch."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from backends.launchers.request import MARKER, Command
from compare.errors import HostError, InterleaveError, LaunchError, OutputError
from compare.launch.cluster import Cluster
from compare.launch.engines import Carrier
from compare.launch.engines.ssh import Ssh
from compare.launch.launches import AliveLaunches
from compare.launch.place import LaunchPlace
from compare.launch.processes import Ending
from compare.schema.arms import parse_arm
from compare.schema.hosts import Host, Link, Network, local_host
from compare.schema.job import Job, SweepJob
from compare.schema.launch_files import LaunchFiles
from compare.schema.turns import Arrival, Memory
from tests.unit.collectives import a_sweep_config
from tests.unit.factories import DIGITS, AnAgent, a_cluster, a_config

ROUTED = Network(interface="eth0", network="eth0", addresses=("n1", "n2"))


@pytest.fixture
def files(tmp_path):
    found = LaunchFiles(tmp_path / "01-ddp")
    found.directory.mkdir()
    return found


@pytest.fixture
def hosts(monkeypatch):
    """Two hosts whose launches run until they are ended."""
    monkeypatch.setattr("compare.launch.cluster.stage", lambda hosts, *_, **__: ["/data"] * len(hosts))
    agents = [AnAgent(host=Host(name, 1), status=None) for name in ("n1", "n2")]
    here = AnAgent(host=local_host(1), status=None)
    cluster = of(agents, here)
    cluster.stage(DIGITS, print)
    return cluster


def of(agents, here, **changes):
    network = Network() if here in agents else ROUTED
    return Cluster(agents, here, **{"network": network, "exported": {}, "carrier": Carrier()} | changes)


def a_place(cluster, files, arm="ddp"):
    return LaunchPlace(cluster, files, parse_arm(arm))


def a_job(name="ddp"):
    config = a_config(name, ranks=2)
    (arm,) = config.arms
    return Job(
        config=config.as_run_by(arm, 1), arm=arm, dataset=DIGITS, affinity=[0], number=1, launched_at=0.0
    )


class ALaunch:
    """A launch at a place, whose monitor is a function."""

    planned, waited_seconds, restarted_because = None, 0.0, ""

    def __init__(self, place, on_tick):
        self.place, self.monitor, self.tick = place, self, on_tick
        self.ended_by = Ending(0)

    def port_was_taken(self):
        return False

    def conclude(self, ending):
        self.ended_by = ending
        raise LaunchError("It failed.")


def carry_out(cluster, files, *commands, arm="ddp", timeout_seconds=30.0, on_tick=lambda: True):
    """Carry out the commands on the hosts of a cluster, and return how they ended."""
    place = a_place(cluster, files, arm)
    config = msgspec.structs.replace(a_config(arm, ranks=2), launch_timeout_seconds=timeout_seconds)
    observer = SimpleNamespace(rank_progressed=lambda *_: None)
    launches = AliveLaunches(config, files.directory, cluster, observer, make_job=None)
    launch = ALaunch(place, on_tick)
    launches.alive.append(launch)
    try:
        place.begin(commands, a_job(arm))
        launches.finish(launch)
    except LaunchError:
        pass
    finally:
        launches.end_all()
    return launch.ended_by


def one_for_each(cluster):
    return [Command(("torchrun",), {"PATH": ""}, host) for host in cluster.hosts]


def after(ticks, then):
    """Return an ``on_tick`` that calls ``then`` at a later tick."""
    left = [ticks]

    def tick():
        left[0] -= 1
        if left[0] == 0:
            then()
        return True

    return tick


def test_place_on_this_machine_is_the_folder_of_the_run(files):
    place = a_place(a_cluster(), files)
    assert place.job_file == files.job
    assert place.mark == str(files.directory)
    assert str(files.directory) not in place.settings()["TMPDIR"]


def test_place_on_hosts_is_a_folder_of_their_own(hosts, files):
    first, second = a_place(hosts, files), a_place(hosts, files)
    assert first.mark != second.mark
    assert first.job_file.parent == Path(first.mark)
    assert first.job_file.parent.parent == Path("/tmp")  # noqa: S108 -- agents make it themselves


@pytest.fixture
def mounted(monkeypatch):
    """Let folders look as if they were mounted noexec."""

    def noexec(*folders):
        flags = {Path(folder): os.ST_NOEXEC for folder in folders}
        monkeypatch.setattr("os.statvfs", lambda path: SimpleNamespace(f_flag=flags.get(Path(path), 0)))

    return noexec


@pytest.mark.parametrize(("noexec", "found"), [(0, 0), (1, 1), (2, 2)])
def test_programs_for_hosts_lie_where_they_can_be_executed(
    files, tmp_path, monkeypatch, mounted, noexec, found
):
    """TMPDIR counts first."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders = [tmp_path, Path("/tmp"), Path("/var/tmp")]  # noqa: S108 -- nothing is written
    mounted(*folders[:noexec])
    here = AnAgent(host=local_host(1), status=0)
    cluster = of([AnAgent(host=Host("n1", 1), status=0)], here, carrier=Ssh())
    monkeypatch.setattr("compare.launch.engines.ssh._program", lambda: "/usr/bin/ssh")
    message = a_place(cluster, files)._message(here, Command(("mpirun",), {"PATH": "/bin"}), a_job())
    (program,) = (Path(name) for name in message.programs if name.endswith("/ssh"))
    assert program.parents[2] == folders[found]
    assert message.environment["PATH"] == f"{program.parent}{os.pathsep}/bin"
    assert str(program.parents[1]) in message.folders


def test_programs_for_hosts_without_a_folder_for_them_are_refused(hosts, files, monkeypatch):
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(OutputError, match="temporary programs") as refused:
        a_place(hosts, files)._message(hosts.here, Command(("mpirun",), {"PATH": "/bin"}), a_job())
    assert "/tmp" in refused.value.found  # noqa: S108 -- a name; nothing is written
    assert "TMPDIR" in refused.value.remedy


@pytest.mark.parametrize(("first_status", "told"), [(None, [True, False]), (0, [False, False])])
def test_carry_out_first_failure_is_returned_and_ends_the_others(hosts, files, first_status, told):
    first, second = hosts.agents
    first.exit_at_once(first_status)
    commands = one_for_each(hosts)
    ending = carry_out(hosts, files, *commands, on_tick=after(2, lambda: second.exit(3)))
    assert ending.status == 3
    assert [agent.told_to_end for agent in hosts.agents] == told


def test_carry_out_one_process_has_its_rank_on_the_first_host(hosts, files):
    first, second = hosts.agents
    first.exit_at_once(0)
    ending = carry_out(hosts, files, *one_for_each(hosts)[:1], arm="single")
    assert ending.status == 0
    assert [bool(agent.begun[0].argv) for agent in (first, second)] == [True, False]
    assert [agent.told_to_end for agent in (first, second)] == [False, True]


@pytest.mark.parametrize(
    ("options", "timed_out"), [({"timeout_seconds": 0.01}, True), ({"on_tick": lambda: False}, False)]
)
def test_carry_out_that_is_given_up_ends_every_host(hosts, files, options, timed_out):
    ending = carry_out(hosts, files, *one_for_each(hosts), **options)
    assert (ending.status, ending.timed_out) == (None, timed_out)
    assert all(agent.told_to_end for agent in hosts.agents)


def test_carry_out_abandoned_by_an_agent_is_no_failure_of_a_launcher(files):
    agent = AnAgent(status=None)
    command = Command(("torchrun",), {"PATH": ""})
    abandon = after(1, lambda: agent.exit(None, abandoned=True))
    ending = carry_out(a_cluster(agent=agent), files, command, on_tick=abandon)
    assert (ending.status, ending.abandoned) == (None, True)


def test_carry_out_launcher_here_starts_after_the_folders_of_hosts(hosts, files):
    began = []
    for agent in (*hosts.agents, hosts.here):
        agent.on_begin = began.append
    hosts.here.exit_at_once(0)
    assert carry_out(hosts, files, Command(("mpirun",), {"PATH": "/bin"})).status == 0
    assert [message.argv for message in began] == [(), (), ("mpirun",)]


def test_carry_out_host_that_is_lost_is_the_cause_of_a_failure(hosts, files):
    first, second = hosts.agents
    first.exit_at_once(1)
    second.lose(HostError("Host n2 cannot be reached."), after_ticks=2)
    with pytest.raises(HostError, match="n2"):
        carry_out(hosts, files, *one_for_each(hosts))


def test_carry_out_host_that_refuses_ends_only_the_agents_asked(hosts, files):
    def refuse(_message):
        raise HostError("Host n2 cannot start the launch.")

    hosts.agents[1].on_begin = refuse
    with pytest.raises(HostError, match="n2"):
        carry_out(hosts, files, Command(("mpirun",), {"PATH": "/bin"}))
    assert [agent.told_to_end for agent in (*hosts.agents, hosts.here)] == [True, True, False]


def test_carry_out_agent_here_that_is_lost_leaves_nothing(files):
    agent, left = AnAgent(status=None), []

    def begin(message):
        folder = Path(message.folders[0])
        folder.mkdir()
        sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
        left.extend([folder, subprocess.Popen(sleep, env=os.environ | {MARKER: message.directory})])

    agent.on_begin = begin
    agent.lose(HostError("Host localhost: the agent was killed."), after_ticks=2)
    with pytest.raises(HostError, match="killed"):
        carry_out(a_cluster(agent=agent), files, Command(("torchrun",), {"PATH": ""}))
    folder, process = left
    assert process.wait(5) != 0
    assert not folder.exists()


def test_job_for_host_of_a_sweep_needs_no_data_set():
    agent = AnAgent(cpus=(2, 3))
    cluster = of([agent], agent)
    config = a_sweep_config()
    job = SweepJob(
        config=config, group="gloo", arm=config.arm_of("gloo"), affinity=[0], number=1, launched_at=5.0
    )
    assert cluster.job_for(agent, job) == msgspec.structs.replace(
        job, affinity=[2, 3], launched_at=5.0 + agent.clock_ahead_seconds
    )


def test_memory_of_a_rehearsal_is_shared_by_all_hosts(hosts, tmp_path):
    """Each host finds enough memory, but both together do not."""
    for agent in hosts.agents:
        agent.memory_left_bytes = 150 << 20
        agent.arrivals = [Arrival(rank=0, pid=1, step_seconds=0.01, memory=Memory(peak_bytes=100 << 20))]
    place = a_place(hosts, LaunchFiles(tmp_path))
    place.require_room([], 2)
    hosts.network = msgspec.structs.replace(ROUTED, rehearsed=Link())
    with pytest.raises(InterleaveError, match="more memory than host n1 has"):
        place.require_room([], 2)


@pytest.mark.parametrize(("left", "fits"), [(None, True), (9 << 29, True), (4 << 30, False)])
def test_gpu_must_have_room_for_another_arm_and_for_cuda(files, left, fits):
    """Of two ranks the one with the least memory left decides."""
    here = AnAgent()
    here.memory_left_bytes = 1 << 40
    place = a_place(of([here], here), files)
    memory = partial(Memory, peak_bytes=1, gpu_peak_bytes=3 << 30)
    here.arrivals = [
        Arrival(rank=rank, pid=1, step_seconds=0.01, memory=memory(gpu_left_bytes=size))
        for rank, size in enumerate([left and 70 << 30, left])
    ]
    with nullcontext() if fits else pytest.raises(InterleaveError, match="than a GPU of host") as refused:
        place.require_room([], 2)
    if not fits:
        assert refused.value.found == "4.0 GiB is left, and another may need 4.5 GiB."


@pytest.mark.parametrize(
    ("shell", "network", "found"), [("", "", "^tcp"), ("self,tcp", "", None), ("", "10.0.0.0/24", None)]
)
def test_open_mpi_listens_only_for_other_hosts_or_if_asked(files, monkeypatch, shell, network, found):
    monkeypatch.delenv("OMPI_MCA_btl", raising=False)
    if shell:
        monkeypatch.setenv("OMPI_MCA_btl", shell)
    here = AnAgent()
    cluster = of([here], here, network=Network(network=network))
    assert a_place(cluster, files).settings().get("OMPI_MCA_btl") == found

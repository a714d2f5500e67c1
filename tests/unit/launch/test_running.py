"""Test how one launch is carried out by the agents of its hosts."""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from backends.launchers.request import Command
from compare.errors import HostError, InterleaveError, LaunchError, OutputError
from compare.launch.arm import LaunchFolders
from compare.launch.engines.ssh import Ssh
from compare.launch.launches import AliveLaunches
from compare.launch.monitor import SUCCEEDED
from compare.launch.running import LaunchSettings, RunningLaunch
from compare.schema.hosts import Host, Link, Network, local_host
from compare.schema.job import Job, Planned
from compare.schema.launch_files import LaunchFiles
from compare.schema.turns import Arrival, Memory
from tests.unit.factories import DIGITS, AnAgent, a_cluster, a_config, cluster_of

ROUTED = Network(interface="eth0", network="eth0", addresses=("n1", "n2"))
MPIRUN = Command(("mpirun",), {"PATH": "/bin"})


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
    return cluster_of(agents, here, **{"network": Network() if here in agents else ROUTED} | changes)


@pytest.fixture
def prepare(tmp_path, monkeypatch):
    """Prepare a launch of ddp with some commands."""

    def prepared(cluster, *commands):
        monkeypatch.setattr("compare.launch.arm._commands", lambda *_: list(commands))
        config = a_config("ddp", ranks=2)
        planned = Planned(1, 1, config.arms[0])
        make_job = partial(Job, dataset=DIGITS)
        return RunningLaunch(LaunchSettings(config, tmp_path, cluster, None, make_job), planned)

    return prepared


@pytest.fixture
def carry_out(prepare, tmp_path, monkeypatch):
    """Carry out commands on the hosts of a cluster, and return how they ended."""

    def carried_out(cluster, *commands, on_tick=lambda: True):
        endings = [SUCCEEDED]

        def conclude(_where, ending, _kind):
            endings.append(ending)
            raise LaunchError("It failed.")

        monitor = SimpleNamespace(tick=on_tick, conclude=conclude, note=None, progress={})
        monkeypatch.setattr("compare.launch.running.Monitor", lambda *_, **__: monitor)
        launch, observer = prepare(cluster, *commands), SimpleNamespace(rank_progressed=lambda *_: None)
        launches = AliveLaunches(a_config("ddp"), tmp_path, cluster, observer, make_job=None)
        launches.alive.append(launch)
        try:
            launch.begin()
            launches.wait(launch, "end")
        except LaunchError:
            pass
        finally:
            launches.end_all()
        return endings[-1]

    return carried_out


def after(ticks, then):
    """Return an ``on_tick`` that calls ``then`` at a later tick."""
    left = [ticks]

    def tick():
        left[0] -= 1
        if left[0] == 0:
            then()
        return True

    return tick


def folders_of(cluster, folder="/runs/x"):
    return LaunchFolders(cluster, LaunchFiles(Path(folder)))


def test_folder_of_a_launch_on_this_machine_is_that_of_the_run():
    folders = folders_of(a_cluster())
    assert (str(folders.job_file), folders.mark) == ("/runs/x/job.json", "/runs/x")
    assert "/runs/x" not in folders.settings()["TMPDIR"]


def test_folder_of_a_launch_on_hosts_is_one_of_its_own(hosts):
    first, second = folders_of(hosts), folders_of(hosts)
    assert first.mark != second.mark
    assert first.job_file.parent == Path(first.mark)
    assert first.job_file.parent.parent == Path("/tmp")  # noqa: S108 -- agents make it themselves


@pytest.mark.parametrize(("noexec", "found"), [(0, 0), (1, 1), (2, 2)])
def test_programs_for_hosts_lie_where_they_can_be_executed(prepare, tmp_path, monkeypatch, noexec, found):
    """TMPDIR counts first."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders = [tmp_path, Path("/tmp"), Path("/var/tmp")]  # noqa: S108 -- nothing is written
    flags = dict.fromkeys(folders[:noexec], os.ST_NOEXEC)
    here = AnAgent(host=local_host(1), status=0)
    launch = prepare(of([AnAgent(host=Host("n1", 1), status=0)], here, carrier=Ssh()), MPIRUN)
    monkeypatch.setattr("os.statvfs", lambda path: SimpleNamespace(f_flag=flags.get(Path(path), 0)))
    monkeypatch.setattr("compare.launch.engines.ssh._find_ssh", lambda: "/usr/bin/ssh")
    order = launch._order(here, MPIRUN)
    (program,) = map(Path, order.programs)
    assert program.name == "ssh"
    assert program.parents[1] == folders[found]
    assert order.environment["PATH"] == f"{program.parent}{os.pathsep}/bin"
    assert str(program.parent) in order.folders


def test_programs_for_hosts_without_a_folder_for_them_are_refused(hosts, prepare, monkeypatch):
    launch = prepare(hosts, MPIRUN)
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(OutputError, match="temporary programs") as refused:
        launch._order(hosts.local_agent, MPIRUN)
    assert "/tmp" in refused.value.found  # noqa: S108 -- a name; nothing is written
    assert "TMPDIR" in refused.value.remedy


@pytest.mark.parametrize(("first_status", "told"), [(None, [True, False]), (0, [False, False])])
def test_first_failure_of_a_launcher_counts_and_ends_the_others(hosts, carry_out, first_status, told):
    first, second = hosts.agents
    first.exit_at_once(first_status)
    commands = [Command(("torchrun",), {"PATH": ""}, host) for host in hosts.hosts]
    ending = carry_out(hosts, *commands, on_tick=after(2, lambda: second.exit(3)))
    assert ending.status == 3
    assert [agent.told_to_end for agent in hosts.agents] == told


def test_launcher_here_starts_after_the_folders_of_hosts(hosts, carry_out):
    began = []
    for agent in (*hosts.agents, hosts.local_agent):
        agent.on_begin = began.append
    hosts.local_agent.exit_at_once(0)
    assert carry_out(hosts, MPIRUN).status == 0
    assert [order.argv for order in began] == [(), (), ("mpirun",)]


def test_host_that_refuses_a_launch_ends_it_on_those_that_were_asked(hosts, carry_out):
    def refuse(_order):
        raise HostError("Host n2 cannot start the launch.")

    hosts.agents[1].on_begin = refuse
    with pytest.raises(HostError, match="n2"):
        carry_out(hosts, MPIRUN)
    assert [agent.told_to_end for agent in (*hosts.agents, hosts.local_agent)] == [True, True, False]


def test_memory_of_a_rehearsal_is_shared_by_all_hosts(hosts, prepare):
    """Each host finds enough memory, but both together do not."""
    for agent in hosts.agents:
        agent.memory_left_bytes = 150 << 20
        agent.arrivals = [Arrival(rank=0, pid=1, step_seconds=0.01, memory=Memory(peak_bytes=100 << 20))]
    launch = prepare(hosts, MPIRUN)
    launch.require_memory_left([], 2)
    hosts.network = msgspec.structs.replace(ROUTED, rehearsed=Link())
    with pytest.raises(InterleaveError, match="more memory than host n1 has"):
        launch.require_memory_left([], 2)


@pytest.mark.parametrize(("left", "fits"), [(None, True), (9 << 29, True), (4 << 30, False)])
def test_gpu_must_have_room_for_another_arm_and_for_cuda(prepare, left, fits):
    """Of two ranks the one with the least memory left decides."""
    here = AnAgent()
    here.memory_left_bytes = 1 << 40
    launch = prepare(of([here], here), MPIRUN)
    memory = partial(Memory, peak_bytes=1, gpu_peak_bytes=3 << 30)
    here.arrivals = [
        Arrival(rank=rank, pid=1, step_seconds=0.01, memory=memory(gpu_left_bytes=size))
        for rank, size in enumerate([left and 70 << 30, left])
    ]
    with nullcontext() if fits else pytest.raises(InterleaveError, match="than a GPU of host") as refused:
        launch.require_memory_left([], 2)
    if not fits:
        assert refused.value.found == "4.0 GiB is left, and another may need 4.5 GiB."


@pytest.mark.parametrize(
    ("shell", "network", "found"), [("", "", "^tcp"), ("self,tcp", "", None), ("", "10.0.0.0/24", None)]
)
def test_open_mpi_listens_only_for_other_hosts_or_if_asked(monkeypatch, shell, network, found):
    monkeypatch.delenv("OMPI_MCA_btl", raising=False)
    if shell:
        monkeypatch.setenv("OMPI_MCA_btl", shell)
    here = AnAgent()
    cluster = of([here], here, network=Network(network=network))
    assert folders_of(cluster).settings().get("OMPI_MCA_btl") == found

"""Where hosts get their data from, and which hosts an error names."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import msgspec
import pytest

from compare import data
from compare.errors import HostError, UnavailableError
from compare.launch import cluster, staging
from compare.launch.cluster import open_cluster
from compare.launch.engines import Allocation, Carrier
from compare.launch.engines.ssh import Ssh
from compare.schema.arms import Arm
from compare.schema.hosts import Host, Network
from compare.schema.job import Job
from compare.schema.parity import Fingerprint
from tests.unit.factories import MNIST, AnAgent, a_cluster, a_run, cluster_of

HERE = (Host("localhost", 1),)


def test_open_cluster_every_host_that_cannot_be_used_is_named():
    hosts = tuple(Host(f"no-such-host-{n}.invalid", 1, source=f"hosts:{n}") for n in (1, 2))
    with (
        pytest.raises(HostError, match="2 of 2 hosts cannot be used") as caught,
        open_cluster(Allocation(hosts, Ssh()), interface=None, exported={}),
    ):
        pass
    assert "no-such-host-1.invalid (hosts:1)" in caught.value.found
    assert "no-such-host-2.invalid (hosts:2)" in caught.value.found


class Slow(Carrier, frozen=True):
    """A carrier whose second host starts late."""

    def argv(self, host, argv):
        return ("sh", "-c", 'sleep "$0"; exec "$@"', "1" if host.name == "slow" else "0", *argv)


def test_hosts_that_start_late_are_named_while_they_are_waited_for(monkeypatch):
    monkeypatch.setattr(cluster, "_SLOW_START_SECONDS", 0.5)
    monkeypatch.setattr(cluster, "_find_network", lambda *_: Network())
    printed = []
    hosts = (*HERE, Host("slow", 1))
    with open_cluster(Allocation(hosts, Slow()), interface=None, exported={}, say=printed.append) as opened:
        assert len(opened.agents) == 2
    assert printed[0].startswith("Waiting until Ringside has started on ")
    assert "slow" in printed[0]
    assert "at most 59.5 s more." in printed[0]


def test_cluster_host_without_a_compiler_is_named():
    agent = AnAgent()
    a_cluster(agent=agent).require_compilers()
    agent.ready = msgspec.structs.replace(agent.ready, cannot_compile="there is no C++ compiler")
    with pytest.raises(UnavailableError, match="cannot compile on host localhost") as caught:
        a_cluster(agent=agent).require_compilers()
    assert caught.value.found == "There is no C++ compiler."
    named = a_cluster(agent=agent)
    named.exported = {"CXX": "clang++"}
    named.require_compilers()


@pytest.mark.parametrize(("quota", "cores"), [(None, 4), (2.5, 2), (0.5, 1), (64.0, 4)])
def test_cores_of_a_host_follow_the_quota_of_its_container(quota, cores):
    agent = AnAgent(2, range(4))
    agent.ready = msgspec.structs.replace(agent.ready, core_quota=quota)
    assert a_cluster(agent=agent).cores() == [cores]


@pytest.mark.parametrize(("cores", "launches"), [(1, 1), (2, 2), (3, 2), (8, 5)])
def test_launches_start_at_once_as_many_as_fill_the_cores_and_one(cores, launches):
    assert a_cluster(slots=2, cpus=range(cores)).launches_at_once() == launches


def test_topology_of_hundreds_of_hosts_has_few_lines():
    agents = [AnAgent(8, range(8), host=Host(f"n{number}", 8)) for number in range(512)]
    network = Network(interface="eth0", network="eth0", addresses=tuple(f"10.0.0.{n}" for n in range(512)))
    lines = cluster_of(agents, agents[0], network=network).topology()
    assert lines[7:9] == ["n7: 8 ranks, 8 CPUs, 10.0.0.7", "and 504 more hosts"]
    assert len(lines) == 10


def test_job_of_a_host_has_the_fingerprints_of_its_own_ranks_only():
    agents = [AnAgent(2, host=Host(f"n{number}", 2)) for number in range(3)]
    cluster = cluster_of(agents, agents[0])
    cluster._datasets = ["/data"] * 3
    prints = {rank: Fingerprint("0" * 64, f"{rank:064x}") for rank in range(6)}
    fields = {"affinity": [], "number": 1, "launched_at": 0.0, "dataset": MNIST}
    job = Job(config=a_run().config, arm=Arm("ddp"), proven=prints, **fields)
    assert cluster.job_for(agents[1], job, [2, 3]).proven == {2: prints[2], 3: prints[3]}


@pytest.fixture
def digits(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return data.resolve("digits", tmp_path / "mine")


def test_stage_this_machine_takes_the_data_set_where_it_is(digits):
    messages = []
    found = staging.stage(HERE, digits, python=sys.executable, carrier=Ssh(), say=messages.append)
    assert (found, messages) == ([digits.directory], [])


def test_stage_host_without_the_data_set_gets_a_verified_copy(digits, tmp_path):
    # Elsewhere it lies in another folder than here: made out by asking for one that there is not.
    elsewhere = msgspec.structs.replace(digits, directory="/no/such/folder")
    (empty,) = staging._ask(HERE, elsewhere, sys.executable, Ssh()).values()
    assert (empty.directory, Path(empty.cache).is_relative_to(tmp_path / "cache")) == ("", True)
    files = msgspec.msgpack.encode(data.files_of(digits))
    for _ in range(2):
        (held,) = staging._ask(HERE, elsewhere, sys.executable, Ssh(), files).values()
        assert held.directory == held.cache == empty.cache
    folder = Path(held.cache)
    assert list(folder.parent.iterdir()) == [folder]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    min(folder.iterdir()).write_bytes(b"nonsense")
    assert staging.main("digits", "/no/such/folder", data.key_of(digits)).directory == ""


def test_stage_copy_that_does_not_arrive_is_an_error(digits, monkeypatch):
    lacking = staging.DatasetPlace("", "/cache")
    monkeypatch.setattr(staging, "_ask", lambda hosts, *_: dict.fromkeys(hosts, lacking))
    messages = []
    with pytest.raises(HostError, match="did not get a whole copy"):
        staging.stage((Host("n1", 1),), digits, python=sys.executable, carrier=Ssh(), say=messages.append)
    assert messages[0].startswith("Copying digits")


def test_stage_large_workload_that_a_host_lacks_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "train.py").write_text("def make(): ...")
    source = data.own_source(f"{tmp_path}/train.py:make")
    monkeypatch.setattr(data.source, "MOST_BYTES", 3)
    asked = []

    def ask(hosts, source, *_rest):
        asked.append(data.key_of(source))
        return dict.fromkeys(hosts, staging.DatasetPlace("", "/cache"))

    monkeypatch.setattr(staging, "_ask", ask)
    with pytest.raises(HostError, match="n1 does not have the folder") as error:
        staging.stage((Host("n1", 1),), source, python=sys.executable, carrier=Ssh(), say=lambda _: None)
    assert f"rsync -a {tmp_path}/ n1:{tmp_path}/" in error.value.remedy
    assert asked == [f"code-{source.sha256}"]


def test_stage_answer_of_a_host_may_follow_a_greeting():
    answer = staging.Answer(Host("n1", 1), 0, b'Welcome\n{"directory":"/d","cache":"/c"}\n', b"", 0.1)
    assert staging.read_place(answer) == staging.DatasetPlace("/d", "/c")
    with pytest.raises(HostError, match="n1"):
        staging.read_place(answer._replace(stdout=b"Welcome\n"))

"""``--engine``: what it refuses, and when the hosts of a rehearsal exist."""

import sys
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from compare.cli.main import app
from compare.errors import UnavailableError, UsageError
from compare.launch.engines.rehearsal import Rehearsal


@pytest.fixture
def rooms(monkeypatch):
    """Note when the room of a rehearsal is made and removed, without making one."""
    happened = []

    @contextmanager
    def opened(carrier):
        happened.append(f"{carrier.hosts} hosts, {carrier.link}")
        try:
            yield carrier
        finally:
            happened.append("removed")

    monkeypatch.setattr(Rehearsal, "opened", opened)
    return happened


def call(*arguments):
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--engine", "pbs"], "--engine cannot be pbs"),
        (["run", "--engine", "local:port=22"], "--engine local has no option 'port'"),
        (["run", "--engine", "rehearsal:nodes=2"], "Use one of: hosts, slots, rate, latency"),
        (["run", "--engine", "rehearsal:hosts=0"], "a whole number from 1 to 200"),
        (["doctor", "--engine", "rehearsal:slots=x"], "slots cannot be 'x'"),
        (["run", "--engine", "rehearsal:rate=fast"], "a rate from 100kbit to 1tbit"),
        (["run", "--engine", "rehearsal:latency=11s"], "a latency of at most 10s"),
        (["run", "--engine", "ssh:port=65536", "-H", "n1"], "a whole number from 1 to 65,535"),
        (["run", "--engine", "ssh:identity=no/such/key", "-H", "n1"], "There is no file"),
        (["run", "--engine", "ssh:wait=soon", "-H", "n1"], "'soon' is not a length of time"),
        (["run", "--engine", "ssh:wait=inf", "-H", "n1"], "It must be a time, such as 5m"),
        (["run", "--engine", "rehearsal", "-H", "n1"], "makes its own hosts"),
        (["doctor", "--engine", "rehearsal", "--hostfile", "hosts.txt"], "makes its own hosts"),
        (["run", "--engine", "rehearsal", "-np", "5"], "5 ranks do not fit"),
    ],
)
def test_engine_with_a_wrong_option_is_refused_before_hosts_are_made(rooms, arguments, says):
    done = call(*arguments)
    assert isinstance(done.exception, UsageError)
    assert says in str(done.exception)
    assert done.exception.remedy
    assert rooms == []


@pytest.mark.parametrize(
    "command",
    [
        f"gate --against {sys.executable}",
        "run --backend mpi:library=mpich",
        "verify --backend mpi:library=mpich",
    ],
)
def test_arm_of_this_machine_alone_is_refused_before_hosts_are_made(rooms, command):
    done = call(*command.split(), "--engine", "rehearsal:hosts=2")
    assert isinstance(done.exception, UnavailableError)
    assert "cannot run on other hosts than this machine" in done.exception.what
    assert "without --engine" in done.exception.remedy
    assert rooms == []


def test_run_has_the_hosts_of_a_rehearsal_while_it_works(rooms, monkeypatch):
    def compare_arms(request, *_):
        hosts = [(host.name, host.slots) for host in request.allocation.hosts]
        rooms.append((hosts, request.allocation.rehearsed.bits_per_second))
        raise UsageError("enough")

    monkeypatch.setattr("compare.experiment.compare_arms", compare_arms)
    engine = "rehearsal:hosts=2,slots=2,rate=1gbit,latency=2ms"
    done = call("run", "--engine", engine, "--backend", "ddp", "-np", "3")
    assert str(done.exception) == "enough"
    assert rooms == ["2 hosts, 1 gbit/s, 2 ms", ([("rehearsal-1", 2), ("rehearsal-2", 1)], 10**9), "removed"]


def test_dry_run_of_a_rehearsal_makes_no_hosts(rooms):
    done = call("run", "--engine", "rehearsal", "--backend", "ddp", "--dry-run")
    assert done.exit_code == 0, done.output
    shown = " ".join(done.output.split())
    assert "ddp on rehearsal-1" in shown
    assert "rehearsal-2 has --node_rank=1" in shown
    assert rooms == []


def test_doctor_examines_the_hosts_of_a_rehearsal_while_they_exist(rooms, monkeypatch):
    def examine(hosts, **_):
        rooms.append([host.name for host in hosts])
        raise UsageError("enough")

    monkeypatch.setattr("compare.doctor.examine.examine", examine)
    call("doctor", "--engine", "rehearsal:hosts=1")
    assert rooms == ["1 hosts, no rate limit", ["rehearsal-1"], "removed"]

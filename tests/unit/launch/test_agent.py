"""Test an agent and the connection to it, on this machine."""

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import stat
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from backends.launchers.request import MARKER
from compare import __version__
from compare.errors import HostError, OutputError, UnavailableError
from compare.launch.agent import connection as module
from compare.launch.agent.connection import close_all, connected
from compare.launch.agent.launch import _Launch
from compare.launch.agent.protocol import ProtocolError, Start
from compare.launch.engines import Carrier
from compare.launch.processes import descendants, end_all
from compare.schema.hosts import Host
from compare.schema.job import read_progress
from compare.schema.launch_files import LEASE_SECONDS, LaunchFiles
from tests.waiting import wait_until

HERE = Host(name="localhost", slots=1)
RANKS = range(2)
RANK = Path(__file__).resolve().parents[2] / "lab" / "rank.py"


@pytest.fixture
def mark(tmp_path):
    """Name a launch, and require that nothing is left of it."""
    name = str(tmp_path / "on-the-host")
    yield name
    left = [process.cmdline() for process in descendants(name)]
    end_all(name)
    assert left == []


class OneLaunch:
    """A connection with one launch, whose errors are raised as ``attend`` does."""

    def __init__(self, connection, mark):
        self.connection, self.link = connection, connection.launch(mark)

    def __getattr__(self, name):
        return getattr(self.link if hasattr(self.link, name) else self.connection, name)

    def tick(self):
        self.connection.tick()
        module._raise_first_error([self.connection])


@pytest.fixture
def agent(mark):
    with connected([HERE], python=sys.executable, carrier=Carrier()) as (made,):
        yield OneLaunch(made, mark)


@pytest.fixture
def files(tmp_path):
    mirrored = LaunchFiles(tmp_path / "mirrored")
    mirrored.directory.mkdir()
    return mirrored


def a_launch(mark, *rank, **changes):
    argv = (sys.executable, str(RANK), mark, *rank) if rank else ()
    defaults = {
        "directory": mark,
        "files": {"job.json": b'{"seed": 1}'},
        "argv": argv,
        "environment": {"PYTHONPATH": str(RANK.parents[2]), "SECRET": "hunter2"},
    }
    return Start(**defaults | changes)


def tick_until(agent, condition, seconds=30):
    wait_until(condition, seconds, agent.tick)


@pytest.fixture
def busy(agent, mark, files):
    """An agent with a rank that trains for a minute."""
    agent.start(a_launch(mark, "0", "60"), files, RANKS)
    tick_until(agent, lambda: read_progress(files, 0))
    return agent


def side_by_side(connection, mark, tmp_path, count):
    """Start launches on one connection, until the rank of each trains."""
    links = []
    for number in range(count):
        own = LaunchFiles(tmp_path / f"mirrored-{number}")
        own.directory.mkdir()
        links.append(connection.launch(f"{mark}-{number}"))
        links[-1].start(a_launch(f"{mark}-{number}", "0", "60"), own, RANKS)
        tick_until(connection, lambda own=own: read_progress(own, 0))
    return links


def test_agent_reports_its_version_python_clock_and_free_ports(agent):
    tick_until(agent, lambda: agent.ready)
    assert agent.ready.version == __version__
    assert "127.0.0.1/8" in agent.ready.addresses["lo"]
    assert agent.ready.cpus == sorted(os.sched_getaffinity(0))
    tick_until(agent, lambda: agent._ahead_seconds is not None)
    assert abs(agent.clock_ahead_seconds) < 0.5
    for _ in range(2):
        agent.find_port()
        assert agent.port is None
        tick_until(agent, lambda: agent.port)
        with closing(socket.socket()) as probe:
            probe.bind(("", agent.port))


def test_connection_refuses_an_agent_of_another_version(agent, monkeypatch):
    monkeypatch.setattr(module, "__version__", "99.0")
    with pytest.raises(HostError, match="another version") as raised:
        tick_until(agent, lambda: False)
    assert raised.value.found == f"{__version__} there, 99.0 here."


def test_connections_open_and_close_together():
    hosts = [HERE] * 8
    with connected(hosts, python=sys.executable, carrier=Carrier()) as agents:
        for agent in agents:
            tick_until(agent, lambda agent=agent: agent.ready)
    assert [agent._process.returncode for agent in agents] == [0] * 8


def test_agent_sends_all_files_back_and_leaves_none(agent, mark, files):
    agent.start(a_launch(mark, "0", "3"), files, RANKS)
    seen = set()
    tick_until(agent, lambda: seen.add(progress_of(files)) or agent.exited)
    assert agent.exited.status == 0
    assert len(seen) > 3, "progress arrives while it is made"
    result = json.loads(files.result(0).read_text())
    assert result["secret"] == "hunter2"  # noqa: S105 -- not a real one
    assert result["job"] == '{"seed": 1}'
    assert result["modes"] == ["0o700", "0o600"]
    assert files.log(0).read_text().splitlines() == [f"step {n}" for n in range(30)]
    assert (files.directory / "launcher-localhost.log").read_text() == "all is done\n"
    assert not files.job.exists(), "a file of the parent is not sent back"
    assert not Path(mark).exists()


def progress_of(files):
    progress = read_progress(files, 0)
    return progress.step if progress else -1


def test_agent_carries_out_another_launch_after_one_that_failed(agent, mark, files):
    agent.start(a_launch(mark, "0", "0.1", "failure"), files, RANKS)
    tick_until(agent, lambda: agent.exited)
    assert agent.exited.status == 1
    assert json.loads(files.failure(0).read_text())["message"] == "on purpose"
    agent.link = agent.connection.launch("1")
    agent.start(a_launch(mark, "1", "0.1"), files, RANKS)
    tick_until(agent, lambda: agent.exited)
    assert files.result(1).exists()


def test_agent_carries_out_launches_side_by_side_on_one_connection(agent, mark, tmp_path):
    first, second, third = side_by_side(agent, mark, tmp_path, 3)
    second.end()
    tick_until(agent, lambda: second.exited)
    assert (second.exited.status, second.exited.abandoned) == (None, False)
    assert [first.exited, third.exited] == [None, None]
    assert not list(descendants(f"{mark}-1"))
    for link in (first, third):
        link.end()
    tick_until(agent, lambda: first.exited and third.exited)
    assert not any(Path(f"{mark}-{number}").exists() for number in range(3))


@pytest.mark.parametrize(
    ("number", "found"), [(signal.SIGKILL, "was killed"), (signal.SIGSTOP, "sent nothing for 10 s")]
)
def test_launch_whose_process_is_lost_is_named_and_ends_alone(agent, mark, tmp_path, number, found):
    made = agent.connection
    lost, other = side_by_side(made, mark, tmp_path, 2)
    victim = min(psutil.Process(made._process.pid).children(), key=lambda child: child.create_time())
    victim.send_signal(number)
    tick_until(made, lambda: lost.error)
    assert found in str(lost.error)
    assert not other.exited
    wait_until(lambda: not list(descendants(f"{mark}-0")), 10)
    other.end()
    tick_until(made, lambda: other.exited)


def test_agent_without_a_command_watches_ranks_started_elsewhere(agent, mark, files):
    agent.start(a_launch(mark), files, RANKS)
    directory = Path(mark)
    tick_until(agent, (directory / "lease").exists)
    environment = os.environ | {"PYTHONPATH": str(RANK.parents[2]), MARKER: mark}
    rank = psutil.Popen([sys.executable, str(RANK), directory, "0", "60"], env=environment)
    tick_until(agent, lambda: read_progress(files, 0))
    before = (directory / "lease").stat().st_mtime_ns
    tick_until(agent, lambda: (directory / "lease").stat().st_mtime_ns > before)
    agent.end()
    tick_until(agent, lambda: agent.exited)
    assert rank.wait(5) != 0


def test_agent_start_makes_folders_files_and_programs_until_the_end(agent, mark, files, tmp_path):
    scratch = [tmp_path / "a" / "scratch", tmp_path / "b"]
    program, secret = scratch[1] / "bin" / "ssh", scratch[1] / "exported.json"
    launch = a_launch(
        mark,
        folders=tuple(map(str, scratch)),
        files={"job.json": b"{}", str(secret): b"{}"},
        programs={str(program): b"#!/bin/sh\n"},
    )
    agent.start(launch, files, RANKS)
    assert not agent.started
    tick_until(agent, lambda: agent.started)
    assert (Path(mark) / "job.json").is_file()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (*scratch, program, secret)]
    assert modes == [0o700, 0o700, 0o700, 0o600]
    agent.end()
    tick_until(agent, lambda: agent.exited)
    assert not any(folder.exists() for folder in (Path(mark), *scratch))


def test_agent_keeps_a_folder_that_exists_and_removes_the_others(agent, mark, files, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    second.mkdir()
    agent.start(a_launch(mark, "0", "0", folders=(str(first), str(second))), files, RANKS)
    with pytest.raises(HostError, match=r"Host localhost: .* could not be used") as raised:
        tick_until(agent, lambda: agent.exited)
    assert "File exists" in raised.value.found
    assert set(tmp_path.iterdir()) == {files.directory, second}


# ---- in the run's own folder ----


def test_agent_in_place_sends_nothing_back_and_keeps_the_folder(agent, mark):
    own = LaunchFiles(Path(mark))
    own.directory.mkdir()
    agent.start(a_launch(mark, "0", "0.1", in_place=True), None, RANKS)
    tick_until(agent, lambda: agent.exited)
    assert agent.exited.status == 0
    assert own.result(0).exists()
    assert own.launcher_log.read_text() == "all is done\n"


NO_LAUNCHER = "/no/such/launcher could not be executed"


@pytest.mark.parametrize(
    ("in_place", "folders", "error", "says"),
    [
        (True, (), UnavailableError, [NO_LAUNCHER]),
        (True, ("/proc/no/folder",), OutputError, ["/proc/no", "TMPDIR"]),
        (False, (), HostError, [NO_LAUNCHER]),
    ],
)
def test_launch_that_cannot_start_keeps_its_error_here_alone(
    agent, mark, files, in_place, folders, error, says
):
    if in_place:
        Path(mark).mkdir()
    launch = a_launch(mark, argv=("/no/such/launcher",), in_place=in_place, folders=folders)
    agent.start(launch, None if in_place else files, RANKS)
    with pytest.raises(error) as caught:
        tick_until(agent, lambda: agent.exited)
    assert all(part in str(caught.value) for part in says)


def test_agent_in_place_whose_folder_vanishes_is_an_error_of_output(agent, mark):
    Path(mark).mkdir()
    agent.start(a_launch(mark, argv=("sleep", "60"), in_place=True), None, RANKS)
    tick_until(agent, LaunchFiles(Path(mark)).launcher_log.exists)
    shutil.rmtree(mark)
    with pytest.raises(OutputError, match="can no longer be written"):
        tick_until(agent, lambda: agent.exited)


def test_agent_sends_a_large_log_in_full(agent, mark, files):
    code = "import sys; sys.stdout.write('0123456789' * 1_000_000)"
    agent.start(a_launch(mark, argv=(sys.executable, "-c", code)), files, RANKS)
    tick_until(agent, lambda: agent.exited)
    assert (files.directory / "launcher-localhost.log").read_text() == "0123456789" * 1_000_000


def test_agent_shows_no_secret_in_arguments(busy):
    arguments = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            arguments += process.cmdline()
    assert any("rank.py" in argument for argument in arguments)
    assert not [argument for argument in arguments if "hunter2" in argument and "rank.py" not in argument]
    busy.end()
    tick_until(busy, lambda: busy.exited)


@pytest.mark.timed
def test_agent_ends_its_launch_when_the_connection_closes(busy, mark):
    began = time.monotonic()
    close_all([busy])
    while list(descendants(mark)) or Path(mark).exists():
        assert time.monotonic() - began < 5
        time.sleep(0.05)


@pytest.mark.slow
def test_agent_ends_its_launch_when_the_parent_is_silent(busy, mark):
    began = time.monotonic()
    while list(descendants(mark)) or Path(mark).exists():
        assert time.monotonic() - began < LEASE_SECONDS + 6
        time.sleep(0.1)
    assert time.monotonic() - began > LEASE_SECONDS - 2
    tick_until(busy, lambda: busy.exited)
    assert busy.exited.abandoned
    busy.tick()  # its pipe is closed now, but its launch ended before


def test_killed_agent_is_named_and_leaves_nothing_of_its_launch(busy, mark):
    os.kill(busy._process.pid, signal.SIGKILL)
    with pytest.raises(HostError, match=r"Host localhost.* killed by signal 9") as raised:
        tick_until(busy, lambda: False, seconds=10)
    assert "killed by hand" in raised.value.remedy
    wait_until(lambda: not list(descendants(mark)) and not Path(mark).exists(), 5)


def test_connection_gives_up_a_silent_host(agent, monkeypatch):
    tick_until(agent, lambda: agent.ready)
    os.kill(agent._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(module, "SILENT_SECONDS", 1.0)
    began = time.monotonic()
    with pytest.raises(HostError, match="did not answer within"):
        tick_until(agent, lambda: False, seconds=10)
    close_all([agent])
    assert time.monotonic() - began < 8


class Flood(Carrier, frozen=True):
    """A carrier whose host floods one stream."""

    stream: int

    def argv(self, host, argv):
        del host, argv
        return ("sh", "-c", f"exec yes flood >&{self.stream}")


@pytest.mark.parametrize(
    ("python", "carrier", "start_seconds", "what", "found"),
    [
        ("/no/such/python", Carrier(), 60.0, "cannot execute the command", "/no/such/python"),
        (
            sys.executable,
            Flood(stream=1),
            60.0,
            "Host localhost: what it sent does not come from Ringside's agent",
            "",
        ),
        (sys.executable, Flood(stream=2), 1.0, "Host localhost did not answer within", "flood"),
    ],
)
def test_connection_to_no_agent_is_given_up(monkeypatch, python, carrier, start_seconds, what, found):
    monkeypatch.setattr(module, "START_SECONDS", start_seconds)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with (
        connected([HERE], python=python, carrier=carrier) as (agent,),
        pytest.raises(HostError, match=what) as raised,
    ):
        tick_until(agent, lambda: agent.ready)
    assert found in raised.value.found
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_wrong_message_does_not_break_off_a_clean_up(mark):
    """The parent may have sent anything while the agent ends stubborn processes."""
    sent = []

    def receive():
        raise ProtocolError("not a message")
        yield

    pipe = SimpleNamespace(receive=receive, keep_alive=lambda: sent.append("alive"))
    _Launch(Start(directory=mark, files={}), pipe).keep_alive()
    assert sent == ["alive"]

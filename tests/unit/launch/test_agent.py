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
from compare.launch.agent.connection import Connection, close_all, connected
from compare.launch.agent.launch import _Launch
from compare.launch.agent.protocol import (
    ProtocolError,
    Start,
)
from compare.launch.engines.local import Local
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
    with connected([HERE], python=sys.executable, carrier=Local()) as (made,):
        yield OneLaunch(made, mark)


def an_agent(mark):
    return OneLaunch(Connection(HERE, python=sys.executable, carrier=Local()), mark)


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
        "deadline_seconds": 60.0,
    }
    return Start(**defaults | changes)


def tick_until(agent, condition, seconds=30):
    wait_until(condition, seconds, agent.tick)


def test_agent_reports_its_version_python_and_clock(agent):
    tick_until(agent, lambda: agent.ready)
    assert agent.ready.version == __version__
    assert agent.ready.python == sys.version.split()[0]
    assert "127.0.0.1/8" in agent.ready.addresses["lo"]
    assert agent.ready.cpus == sorted(os.sched_getaffinity(0))
    tick_until(agent, lambda: agent._ahead_seconds is not None)
    assert abs(agent.clock_ahead_seconds) < 0.5


def test_agent_finds_a_free_port(agent):
    for _ in range(2):
        agent.find_port()
        assert agent.port is None
        tick_until(agent, lambda: agent.port)
        with closing(socket.socket()) as probe:
            probe.bind(("", agent.port))


def test_agent_reports_the_start_when_the_files_are_there(agent, mark, files):
    agent.start(a_launch(mark), files, RANKS)
    assert not agent.started
    tick_until(agent, lambda: agent.started)
    assert (Path(mark) / "job.json").is_file()
    agent.end()
    tick_until(agent, lambda: agent.exited)
    assert not Path(mark).exists()


def test_connection_refuses_an_agent_of_another_version(agent, monkeypatch):
    monkeypatch.setattr(module, "__version__", "99.0")
    with pytest.raises(HostError, match="another version") as raised:
        tick_until(agent, lambda: False)
    assert raised.value.found == f"{__version__} there, 99.0 here."


def test_connections_open_and_close_together():
    hosts = [HERE] * 8
    with connected(hosts, python=sys.executable, carrier=Local()) as agents:
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


def test_agent_carries_out_one_launch_after_the_other(agent, mark, files):
    for rank in ("0", "1"):
        agent.link = agent.connection.launch(rank)
        agent.start(a_launch(mark, rank, "0.1"), files, RANKS)
        tick_until(agent, lambda: agent.exited)
    assert files.result(0).exists()
    assert files.result(1).exists()


def test_agent_carries_out_launches_side_by_side_on_one_connection(agent, mark, tmp_path):
    launches = []
    for number in range(3):
        own = LaunchFiles(tmp_path / f"mirrored-{number}")
        own.directory.mkdir()
        link = agent.connection.launch(f"{mark}-{number}")
        link.start(a_launch(f"{mark}-{number}", "0", "60"), own, RANKS)
        launches.append((link, own))
    tick_until(agent, lambda: all(read_progress(own, 0) for _, own in launches))
    first, second, third = (link for link, _ in launches)
    second.end()
    tick_until(agent, lambda: second.exited)
    assert [first.exited, third.exited] == [None, None]
    assert not list(descendants(f"{mark}-1"))
    for link in (first, third):
        link.end()
    tick_until(agent, lambda: first.exited and third.exited)
    assert not any(Path(f"{mark}-{number}").exists() for number in range(3))


@pytest.mark.parametrize(
    ("number", "found"), [(signal.SIGKILL, "was killed"), (signal.SIGSTOP, "sent nothing for 10 s")]
)
def test_launch_whose_process_is_lost_is_named_and_ends_alone(mark, tmp_path, number, found):
    with connected([HERE], python=sys.executable, carrier=Local()) as (made,):
        links = []
        for name in (f"{mark}-a", f"{mark}-b"):
            own = LaunchFiles(tmp_path / f"mirrored{name[-2:]}")
            own.directory.mkdir()
            links.append(made.launch(name))
            links[-1].start(a_launch(name, "0", "60"), own, RANKS)
            tick_until(made, lambda own=own: read_progress(own, 0))
        lost, other = links
        victim = min(psutil.Process(made._process.pid).children(), key=lambda child: child.create_time())
        victim.send_signal(number)
        tick_until(made, lambda: lost.error)
        assert found in str(lost.error)
        assert not other.exited
        wait_until(lambda: not list(descendants(f"{mark}-a")), 10)
        other.end()
        tick_until(made, lambda: other.exited)


def test_agent_sends_a_failure_back_with_the_status(agent, mark, files):
    agent.start(a_launch(mark, "0", "0.1", "failure"), files, RANKS)
    tick_until(agent, lambda: agent.exited)
    assert agent.exited.status == 1
    assert json.loads(files.failure(0).read_text())["message"] == "on purpose"


def test_agent_ends_a_launch_when_asked_or_at_its_deadline(agent, mark, files):
    agent.start(a_launch(mark, "0", "60"), files, RANKS)
    tick_until(agent, lambda: read_progress(files, 0))
    agent.end()
    tick_until(agent, lambda: agent.exited)
    assert (agent.exited.status, agent.exited.abandoned) == (None, False)
    agent.start(a_launch(mark, "0", "60", deadline_seconds=1.0), files, RANKS)
    tick_until(agent, lambda: agent.exited)
    assert agent.exited.status is None


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


def test_agent_makes_scratch_folders_and_removes_them(agent, mark, files, tmp_path):
    scratch = (str(tmp_path / "a" / "scratch"), str(tmp_path / "b"))
    launch = a_launch(mark, argv=("sleep", "60"), folders=scratch)
    agent.start(launch, files, RANKS)
    tick_until(agent, lambda: all(Path(folder).is_dir() for folder in scratch))
    assert stat.S_IMODE(Path(scratch[0]).stat().st_mode) == 0o700
    agent.end()
    tick_until(agent, lambda: agent.exited)
    assert not any(Path(folder).exists() for folder in scratch)


def test_agent_removes_the_first_folder_if_the_second_fails(agent, mark, files, tmp_path):
    first = tmp_path / "first"
    agent.start(a_launch(mark, "0", "0", folders=(str(first), "/proc/no/folder")), files, RANKS)
    with pytest.raises(HostError, match="could not be used"):
        tick_until(agent, lambda: agent.exited)
    assert list(tmp_path.iterdir()) == [files.directory]


def test_agent_programs_are_executable_and_files_are_not(agent, mark, files, tmp_path):
    program, secret = tmp_path / "scratch" / "bin" / "ssh", tmp_path / "scratch" / "exported.json"
    scratch = {"folders": (str(program.parents[1]),), "files": {str(secret): b"{}"}}
    agent.start(a_launch(mark, programs={str(program): b"#!/bin/sh\n"}, **scratch), files, RANKS)
    tick_until(agent, lambda: agent.started)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (program, secret)] == [0o700, 0o600]
    agent.end()
    tick_until(agent, lambda: agent.exited)
    assert not program.exists()


# ---- in the run's own folder ----


@pytest.fixture
def own_folder(mark):
    """Make the run's own folder of a launch."""
    folder = LaunchFiles(Path(mark))
    folder.directory.mkdir()
    return folder


def test_agent_in_place_sends_nothing_back_and_keeps_the_folder(agent, mark, own_folder):
    agent.start(a_launch(mark, "0", "0.1", in_place=True), None, RANKS)
    tick_until(agent, lambda: agent.exited)
    assert agent.exited.status == 0
    assert own_folder.result(0).exists()
    assert own_folder.launcher_log.read_text() == "all is done\n"


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"argv": ("/no/such/launcher",)}, UnavailableError, ["/no/such/launcher could not be executed"]),
        (
            {"argv": ("sleep", "60"), "folders": ("/proc/no/folder",)},
            *(OutputError, ["/proc/no", "TMPDIR"]),
        ),
    ],
)
def test_agent_in_place_keeps_the_class_of_its_error(agent, mark, own_folder, changes, error, says):
    agent.start(a_launch(mark, in_place=True, **changes), None, RANKS)
    with pytest.raises(error) as caught:
        tick_until(agent, lambda: agent.exited)
    assert all(part in str(caught.value) for part in says)


def test_agent_in_place_whose_folder_vanishes_is_an_error_of_output(agent, mark, own_folder):
    agent.start(a_launch(mark, argv=("sleep", "60"), in_place=True), None, RANKS)
    tick_until(agent, lambda: agent.started)
    shutil.rmtree(own_folder.directory)
    with pytest.raises(OutputError, match="can no longer be written"):
        tick_until(agent, lambda: agent.exited)


def test_agent_refuses_a_folder_that_exists_and_keeps_it(agent, mark, files):
    folder = Path(mark)
    folder.mkdir()
    agent.start(a_launch(mark, "0", "0"), files, RANKS)
    with pytest.raises(HostError, match=r"Host localhost: .* could not be used") as raised:
        tick_until(agent, lambda: agent.exited)
    assert "File exists" in raised.value.found
    assert folder.is_dir()


def test_agent_refuses_a_command_that_does_not_exist(agent, mark, files):
    agent.start(a_launch(mark, argv=("/no/such/launcher",)), files, RANKS)
    with pytest.raises(HostError, match="/no/such/launcher could not be executed"):
        tick_until(agent, lambda: agent.exited)


def test_agent_sends_a_large_log_in_full(agent, mark, files):
    code = "import sys; sys.stdout.write('0123456789' * 1_000_000)"
    agent.start(a_launch(mark, argv=(sys.executable, "-c", code)), files, RANKS)
    tick_until(agent, lambda: agent.exited)
    assert (files.directory / "launcher-localhost.log").read_text() == "0123456789" * 1_000_000


def test_agent_shows_no_secret_in_arguments(agent, mark, files):
    agent.start(a_launch(mark, "0", "60"), files, RANKS)
    tick_until(agent, lambda: read_progress(files, 0))
    arguments = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            arguments += process.cmdline()
    assert any("rank.py" in argument for argument in arguments)
    assert not [argument for argument in arguments if "hunter2" in argument and "rank.py" not in argument]
    agent.end()
    tick_until(agent, lambda: agent.exited)


@pytest.mark.timed
def test_agent_ends_its_launch_when_the_connection_closes(mark, files):
    agent = an_agent(mark)
    agent.start(a_launch(mark, "0", "60"), files, RANKS)
    tick_until(agent, lambda: read_progress(files, 0))
    began = time.monotonic()
    close_all([agent])
    while list(descendants(mark)) or Path(mark).exists():
        assert time.monotonic() - began < 5
        time.sleep(0.05)


@pytest.mark.slow
def test_agent_ends_its_launch_when_the_parent_is_silent(mark, files):
    agent = an_agent(mark)
    agent.start(a_launch(mark, "0", "60"), files, RANKS)
    tick_until(agent, lambda: read_progress(files, 0))
    began = time.monotonic()
    while list(descendants(mark)) or Path(mark).exists():
        assert time.monotonic() - began < LEASE_SECONDS + 6
        time.sleep(0.1)
    assert time.monotonic() - began > LEASE_SECONDS - 2
    tick_until(agent, lambda: agent.exited)
    assert agent.exited.abandoned
    agent.tick()  # its pipe is closed now, but its launch ended before
    close_all([agent])


def test_connection_to_a_killed_agent_is_lost(mark, files):
    agent = Connection(HERE, python=sys.executable, carrier=Local())
    tick_until(agent, lambda: agent.ready)
    os.kill(agent._process.pid, signal.SIGKILL)
    with pytest.raises(HostError, match=r"Host localhost.* killed by signal 9") as raised:
        tick_until(agent, lambda: False, seconds=10)
    assert "killed by hand" in raised.value.remedy
    close_all([agent])


def test_killed_agent_leaves_nothing_of_its_launch(mark, files):
    agent = an_agent(mark)
    agent.start(a_launch(mark, "0", "60"), files, RANKS)
    tick_until(agent, lambda: read_progress(files, 0))
    os.kill(agent._process.pid, signal.SIGKILL)
    wait_until(lambda: not list(descendants(mark)) and not Path(mark).exists(), 5)
    close_all([agent])


def test_connection_with_a_wrong_interpreter_is_lost():
    with (
        connected([HERE], python="/no/such/python", carrier=Local()) as (agent,),
        pytest.raises(HostError, match="cannot execute the command") as raised,
    ):
        tick_until(agent, lambda: agent.ready)
    assert "/no/such/python" in raised.value.found


def test_connection_gives_up_a_silent_host(monkeypatch):
    agent = Connection(HERE, python=sys.executable, carrier=Local())
    tick_until(agent, lambda: agent.ready)
    os.kill(agent._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(module, "SILENT_SECONDS", 1.0)
    began = time.monotonic()
    with pytest.raises(HostError, match="did not answer within"):
        tick_until(agent, lambda: False, seconds=10)
    agent.hang_up()
    close_all([agent])
    assert time.monotonic() - began < 8


class Flood(Local, frozen=True):
    """A carrier whose host floods one stream."""

    stream: int

    def argv(self, host, argv):
        del host, argv
        return ("sh", "-c", f"exec yes flood >&{self.stream}")


@pytest.mark.parametrize(
    ("stream", "what", "found"),
    [
        (1, "Host localhost: what it sent is not from Ringside's agent", ""),
        (2, "Host localhost did not answer within", "flood"),
    ],
)
def test_connection_to_a_host_that_floods_is_given_up(monkeypatch, stream, what, found):
    monkeypatch.setattr(module, "START_SECONDS", 1.0 if stream == 2 else module.START_SECONDS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with (
        connected([HERE], python=sys.executable, carrier=Flood(stream=stream)) as (agent,),
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
    _Launch(Start(directory=mark, files={}, deadline_seconds=1.0), pipe).keep_alive()
    assert sent == ["alive"]

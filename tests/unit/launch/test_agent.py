"""Test an agent and the connection to it, on this machine."""

import json
import os
import resource
import signal
import socket
import stat
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import psutil
import pytest

from compare import __version__
from compare.errors import HostError, OutputError, UnavailableError
from compare.launch.agent import __main__ as program
from compare.launch.agent import connection as module
from compare.launch.agent import exchange
from compare.launch.agent.exchange import connected
from compare.launch.agent.launch import _Launch
from compare.launch.agent.protocol import Alive, End, OfLaunch, ProtocolError, Start
from compare.launch.engines import Carrier
from compare.launch.processes import end_all, launch_processes
from compare.schema.hosts import Host
from compare.schema.job import read_progress
from compare.schema.launch_files import LaunchFiles
from tests.waiting import wait_until

HERE = Host(name="localhost", slots=1)
RANKS = range(2)
RANK = Path(__file__).resolve().parents[2] / "lab" / "rank.py"


@pytest.fixture
def mark(tmp_path):
    """Name a launch, and require that nothing is left of it."""
    name = str(tmp_path / "on-the-host")
    yield name
    left = [process.cmdline() for process in launch_processes(name)]
    end_all(name)
    assert left == []


def tick(connection):
    connection.receive()
    connection.attend()


class OneLaunch:
    """A connection with one launch, whose errors are raised as ``exchange_until`` does."""

    def __init__(self, connection, mark):
        self.connection, self.news = connection, []
        self.link = connection.launch(mark, RANKS, self.news.append)

    def __getattr__(self, name):
        return getattr(self.link if hasattr(self.link, name) else self.connection, name)

    def tick(self):
        tick(self.connection)
        exchange._raise_first_error([self.connection])


@pytest.fixture
def agent(mark):
    with connected([HERE], Carrier()) as (made,):
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
    wait_until(condition, seconds, getattr(agent, "tick", partial(tick, agent)))


def side_by_side(connection, mark, tmp_path, count):
    """Start launches on one connection, until the rank of each trains."""
    links = []
    for number in range(count):
        own = LaunchFiles(tmp_path / f"mirrored-{number}")
        own.directory.mkdir()
        links.append(connection.launch(f"{mark}-{number}", RANKS, lambda _: None))
        links[-1].start(a_launch(f"{mark}-{number}", "0", "60"), own)
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


def test_agent_sends_all_files_back_and_leaves_none(agent, mark, files):
    agent.start(a_launch(mark, "0", "3"), files)
    tick_until(agent, lambda: agent.exited)
    assert agent.exited.status == 0
    steps = [news.progress[0].step for news in agent.news if news.progress]
    assert len(steps) > 3, "progress arrives while it is made"
    assert steps == sorted(set(steps)), "and once"
    assert [rank for news in agent.news for rank in news.done] == [0]
    result = json.loads(files.result(0).read_text())
    assert result["secret"] == "hunter2"  # noqa: S105 -- not a real one
    assert result["job"] == '{"seed": 1}'
    assert result["modes"] == ["0o700", "0o600"]
    assert files.log(0).read_text().splitlines() == [f"step {n}" for n in range(30)]
    assert (files.directory / "launcher-localhost.log").read_text() == "all is done\n"
    assert not files.job.exists(), "a file of the parent is not sent back"
    assert not Path(mark).exists()


def test_agent_carries_out_launches_side_by_side_on_one_connection(agent, mark, tmp_path):
    first, second, third = side_by_side(agent, mark, tmp_path, 3)
    second.end()
    tick_until(agent, lambda: second.exited)
    assert (second.exited.status, second.exited.abandoned) == (None, False)
    assert [first.exited, third.exited] == [None, None]
    assert not list(launch_processes(f"{mark}-1"))
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
    assert not list(launch_processes(f"{mark}-0"))
    assert not Path(f"{mark}-0").exists()
    other.end()
    tick_until(made, lambda: other.exited)


def test_agent_start_makes_folders_files_and_programs_until_the_end(agent, mark, files, tmp_path):
    scratch = [tmp_path / "a" / "scratch", tmp_path / "b"]
    program, secret = scratch[1] / "bin" / "ssh", scratch[1] / "exported.json"
    launch = a_launch(
        mark,
        folders=tuple(map(str, scratch)),
        files={"job.json": b"{}", str(secret): b"{}"},
        programs={str(program): b"#!/bin/sh\n"},
    )
    agent.start(launch, files)
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
    agent.start(a_launch(mark, "0", "0", folders=(str(first), str(second))), files)
    with pytest.raises(HostError, match=r"Host localhost: .* could not be used") as raised:
        tick_until(agent, lambda: agent.exited)
    assert "File exists" in raised.value.found
    assert set(tmp_path.iterdir()) == {files.directory, second}


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
    agent.start(launch, None if in_place else files)
    with pytest.raises(error) as caught:
        tick_until(agent, lambda: agent.exited)
    assert all(part in str(caught.value) for part in says)


def test_agent_sends_a_large_log_in_full(agent, mark, files):
    code = "import sys; sys.stdout.write('0123456789' * 1_000_000)"
    agent.start(a_launch(mark, argv=(sys.executable, "-c", code)), files)
    tick_until(agent, lambda: agent.exited)
    assert (files.directory / "launcher-localhost.log").read_text() == "0123456789" * 1_000_000


class Flood(Carrier, frozen=True):
    """A carrier whose host floods one stream."""

    stream: int

    def argv(self, host, argv):
        del host, argv
        return ("sh", "-c", f"exec yes flood >&{self.stream}")


@pytest.mark.parametrize(
    ("python", "carrier", "start_seconds", "what", "found"),
    [
        ("/no/such/python", Carrier(), 60.0, "cannot start Ringside", "/no/such/python"),
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
    monkeypatch.setattr(sys, "executable", python)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with (
        connected([HERE], carrier) as (agent,),
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


def test_lost_host_is_found_by_every_later_wait_at_once(agent):
    """Each launch that is still alive is ended by a wait of its own."""
    tick_until(agent, lambda: agent.ready)
    agent._process.kill()
    for seconds in (20, 0, 0):
        lost = {}
        exchange.exchange_until([agent.connection], partial(bool, lost), seconds, lost=lost)
        assert list(lost) == [agent.connection]


def test_agent_passes_every_keep_alive_message_on():
    """A beat that is dropped would leave the ranks' lease without renewal for twice as long."""
    beats = [Alive(1.0), Alive(1.5)]
    agent = program.HostAgent(mock.Mock(receive=lambda: beats))
    agent._launches["01-none"] = launch = mock.Mock()
    agent._handle_messages()
    assert launch.pipe.send.call_args_list == [mock.call(beat) for beat in beats]


def test_agent_starts_a_launch_anew_while_the_earlier_one_exits(monkeypatch):
    """A run begins a round again in the same folders, such as without an arm that does not fit."""
    made = []

    def a_process(order, inherited):
        process = mock.Mock(order=order, inherited=inherited)
        made.append(process)
        return process

    monkeypatch.setattr(program, "_LaunchProcess", a_process)
    orders = [OfLaunch("01-none", a_launch("01-none")), OfLaunch("01-none", a_launch("01-none", "0", "3"))]
    pipe = mock.Mock(receive=lambda: orders)
    agent = program.HostAgent(pipe)
    agent._handle_messages()
    earlier, later = made
    assert [call[0] for call in earlier.method_calls] == ["pipe.close", "wait"]
    assert agent._launches == {"01-none": later}
    assert later.inherited == [pipe]
    orders[:] = [OfLaunch("01-none", End())]
    agent._handle_messages()
    later.pipe.send.assert_called_once_with(End())

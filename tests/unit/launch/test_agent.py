"""Test an agent and the connection to it, on this machine."""

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from backends.launchers.request import MARKER
from compare import __version__
from compare.errors import HostError, OutputError, UnavailableError
from compare.launch.agent import connection as module
from compare.launch.agent.connection import Connection, close_all, connected
from compare.launch.agent.machine import count_gpus
from compare.launch.agent.mirror import Mirror
from compare.launch.agent.protocol import (
    Alive,
    End,
    FileChunk,
    FileContent,
    MessagePipe,
    ProtocolError,
    Start,
)
from compare.launch.engines.ssh import Ssh
from compare.launch.processes import descendants, end_all
from compare.schema.hosts import Host
from compare.schema.job import read_progress
from compare.schema.launch_files import LEASE_SECONDS, LaunchFiles

HERE = Host(name="localhost", slots=1)
RANK = Path(__file__).resolve().parents[2] / "lab" / "rank.py"


@pytest.fixture
def mark(tmp_path):
    """Name a launch, and require that nothing is left of it."""
    name = str(tmp_path / "on-the-host")
    yield name
    left = [process.cmdline() for process in descendants(name)]
    end_all(name)
    assert left == []


@pytest.fixture
def agent():
    with connected([HERE], python=sys.executable, carrier=Ssh()) as (made,):
        yield made


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
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        agent.tick()
        time.sleep(0.02)


def test_an_agent_says_what_it_is(agent):
    tick_until(agent, lambda: agent.ready)
    assert agent.ready.version == __version__
    assert agent.ready.python == sys.version.split()[0]
    tick_until(agent, lambda: agent._ahead_seconds is not None)
    assert abs(agent.clock_ahead_seconds) < 0.5


def test_an_agent_says_its_addresses_and_cpus(agent):
    tick_until(agent, lambda: agent.ready)
    assert "127.0.0.1/8" in agent.ready.addresses["lo"]
    assert agent.ready.cpus == sorted(os.sched_getaffinity(0))


def test_an_agent_finds_a_free_port(agent):
    for _ in range(2):
        agent.find_port()
        assert agent.port is None
        tick_until(agent, lambda: agent.port)
        with closing(socket.socket()) as probe:
            probe.bind(("", agent.port))


def test_ranks_may_start_once_their_files_are_there(agent, mark, files):
    agent.start(a_launch(mark), files)
    assert not agent.started
    tick_until(agent, lambda: agent.started)
    assert (Path(mark) / "job.json").is_file()
    agent.end()
    tick_until(agent, lambda: agent.exited)
    assert not Path(mark).exists()


def test_another_version_is_refused(agent, monkeypatch):
    monkeypatch.setattr(module, "__version__", "99.0")
    with pytest.raises(HostError, match="another version") as raised:
        tick_until(agent, lambda: False)
    assert raised.value.found == f"{__version__} there, 99.0 here."


def test_many_links_are_opened_and_closed_together():
    hosts = [HERE] * 8
    with connected(hosts, python=sys.executable, carrier=Ssh()) as agents:
        for agent in agents:
            tick_until(agent, lambda agent=agent: agent.ready)
    assert [agent._process.returncode for agent in agents] == [0] * 8


def test_everything_comes_back_and_nothing_stays(agent, mark, files):
    agent.start(a_launch(mark, "0", "3"), files)
    seen = set()
    tick_until(agent, lambda: seen.add(progress_of(files)) or agent.exited)
    assert agent.exited.status == 0
    assert len(seen) > 3, "progress comes while it is made"
    result = json.loads(files.result(0).read_text())
    assert result["secret"] == "hunter2"  # noqa: S105 -- it is none
    assert result["job"] == '{"seed": 1}'
    assert result["modes"] == ["0o700", "0o600"]
    assert files.log(0).read_text().splitlines() == [f"step {n}" for n in range(30)]
    assert (files.directory / "launcher-localhost.log").read_text() == "all is done\n"
    assert not files.job.exists(), "what came from here is not sent back"
    assert not Path(mark).exists()


def progress_of(files):
    progress = read_progress(files, 0)
    return progress.step if progress else -1


def test_launches_follow_each_other_on_one_link(agent, mark, files):
    for rank in ("0", "1"):
        agent.start(a_launch(mark, rank, "0.1"), files)
        tick_until(agent, lambda: agent.exited)
    assert files.result(0).exists()
    assert files.result(1).exists()


def test_a_failure_comes_back_with_the_status(agent, mark, files):
    agent.start(a_launch(mark, "0", "0.1", "failure"), files)
    tick_until(agent, lambda: agent.exited)
    assert agent.exited.status == 1
    assert json.loads(files.failure(0).read_text())["message"] == "on purpose"


def test_a_launch_is_ended_when_asked_or_too_long(agent, mark, files):
    agent.start(a_launch(mark, "0", "60"), files)
    tick_until(agent, lambda: read_progress(files, 0))
    agent.end()
    tick_until(agent, lambda: agent.exited)
    assert (agent.exited.status, agent.exited.abandoned) == (None, False)
    agent.start(a_launch(mark, "0", "60", deadline_seconds=1.0), files)
    tick_until(agent, lambda: agent.exited)
    assert agent.exited.status is None


def test_an_agent_without_a_command_watches_ranks_that_others_start(agent, mark, files):
    agent.start(a_launch(mark), files)
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


def test_scratch_folders_are_made_and_removed(agent, mark, files, tmp_path):
    scratch = (str(tmp_path / "a" / "scratch"), str(tmp_path / "b"))
    launch = a_launch(mark, argv=("sleep", "60"), folders=scratch)
    agent.start(launch, files)
    tick_until(agent, lambda: all(Path(folder).is_dir() for folder in scratch))
    assert stat.S_IMODE(Path(scratch[0]).stat().st_mode) == 0o700
    agent.end()
    tick_until(agent, lambda: agent.exited)
    assert not any(Path(folder).exists() for folder in scratch)


def test_agent_second_folder_cannot_be_made_removes_the_first(agent, mark, files, tmp_path):
    first = tmp_path / "first"
    agent.start(a_launch(mark, "0", "0", folders=(str(first), "/proc/no/folder")), files)
    with pytest.raises(HostError, match="could not be used"):
        tick_until(agent, lambda: agent.exited)
    assert list(tmp_path.iterdir()) == [files.directory]


def test_agent_programs_are_executable_and_files_are_not(agent, mark, files, tmp_path):
    program, secret = tmp_path / "scratch" / "bin" / "ssh", tmp_path / "scratch" / "exported.json"
    scratch = {"folders": (str(program.parents[1]),), "files": {str(secret): b"{}"}}
    agent.start(a_launch(mark, programs={str(program): b"#!/bin/sh\n"}, **scratch), files)
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
    agent.start(a_launch(mark, "0", "0.1", in_place=True), None)
    tick_until(agent, lambda: agent.exited)
    assert agent.exited.status == 0
    assert own_folder.result(0).exists()
    assert own_folder.launcher_log.read_text() == "all is done\n"


def test_agent_in_place_keeps_the_class_of_its_error(agent, mark, own_folder):
    agent.start(a_launch(mark, argv=("/no/such/launcher",), in_place=True), None)
    with pytest.raises(UnavailableError, match=r"^/no/such/launcher could not be executed"):
        tick_until(agent, lambda: agent.exited)


def test_agent_in_place_whose_folder_vanishes_is_an_error_of_output(agent, mark, own_folder):
    agent.start(a_launch(mark, argv=("sleep", "60"), in_place=True), None)
    tick_until(agent, lambda: agent.started)
    shutil.rmtree(own_folder.directory)
    with pytest.raises(OutputError, match="can no longer be written"):
        tick_until(agent, lambda: agent.exited)


def test_a_folder_that_is_there_already_is_refused_and_kept(agent, mark, files):
    folder = Path(mark)
    folder.mkdir()
    agent.start(a_launch(mark, "0", "0"), files)
    with pytest.raises(HostError, match=r"Host localhost: .* could not be used") as raised:
        tick_until(agent, lambda: agent.exited)
    assert "File exists" in raised.value.found
    assert folder.is_dir()


def test_a_command_that_is_not_there_is_refused(agent, mark, files):
    agent.start(a_launch(mark, argv=("/no/such/launcher",)), files)
    with pytest.raises(HostError, match="/no/such/launcher could not be executed"):
        tick_until(agent, lambda: agent.exited)


def test_what_is_large_comes_whole(agent, mark, files):
    code = "import sys; sys.stdout.write('0123456789' * 1_000_000)"
    agent.start(a_launch(mark, argv=(sys.executable, "-c", code)), files)
    tick_until(agent, lambda: agent.exited)
    assert (files.directory / "launcher-localhost.log").read_text() == "0123456789" * 1_000_000


def test_secrets_are_in_no_arguments(agent, mark, files):
    agent.start(a_launch(mark, "0", "60"), files)
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
def test_hanging_up_ends_everything_at_once(mark, files):
    agent = Connection(HERE, python=sys.executable, carrier=Ssh())
    agent.start(a_launch(mark, "0", "60"), files)
    tick_until(agent, lambda: read_progress(files, 0))
    began = time.monotonic()
    close_all([agent])
    while list(descendants(mark)) or Path(mark).exists():
        assert time.monotonic() - began < 5
        time.sleep(0.05)


@pytest.mark.slow
def test_a_parent_that_says_nothing_is_given_up(mark, files):
    agent = Connection(HERE, python=sys.executable, carrier=Ssh())
    agent.start(a_launch(mark, "0", "60"), files)
    tick_until(agent, lambda: read_progress(files, 0))
    began = time.monotonic()
    while list(descendants(mark)) or Path(mark).exists():
        assert time.monotonic() - began < LEASE_SECONDS + 6
        time.sleep(0.1)
    assert time.monotonic() - began > LEASE_SECONDS - 2
    for _ in range(2):
        agent.tick()
        assert agent.exited.abandoned, "its pipe is closed, and its launch ended before"
    close_all([agent])


def test_connection_to_a_killed_agent_is_lost(mark, files):
    agent = Connection(HERE, python=sys.executable, carrier=Ssh())
    tick_until(agent, lambda: agent.ready)
    os.kill(agent._process.pid, signal.SIGKILL)
    with pytest.raises(HostError, match="Host localhost"):
        tick_until(agent, lambda: False, seconds=10)
    close_all([agent])


def test_connection_with_a_wrong_interpreter_is_lost():
    with (
        connected([HERE], python="/no/such/python", carrier=Ssh()) as (agent,),
        pytest.raises(HostError, match="cannot execute the command") as raised,
    ):
        tick_until(agent, lambda: agent.ready)
    assert "/no/such/python" in raised.value.found


def test_a_host_that_is_silent_is_given_up(monkeypatch):
    agent = Connection(HERE, python=sys.executable, carrier=Ssh())
    tick_until(agent, lambda: agent.ready)
    os.kill(agent._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(module, "SILENT_SECONDS", 1.0)
    began = time.monotonic()
    with pytest.raises(HostError, match="did not answer within"):
        tick_until(agent, lambda: False, seconds=10)
    agent.hang_up()
    close_all([agent])
    assert time.monotonic() - began < 8


# ---- the pipe ----


@pytest.fixture
def ends():
    """Both ends of a pipe, over pipes."""
    to_b, from_a = os.pipe()
    to_a, from_b = os.pipe()
    yield MessagePipe(to_a, from_a), MessagePipe(to_b, from_b)
    for descriptor in (to_b, from_a, to_a, from_b):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def test_messages_arrive_as_they_were_sent(ends):
    one, other = ends
    sent = [FileChunk("x", 7, bytes(range(256))), FileContent("y.json", b""), End(), Alive(1.5)]
    for message in sent:
        one.send(message)
    assert list(other.receive()) == sent
    assert list(other.receive()) == []


def test_what_a_login_shell_says_first_is_skipped(ends):
    one, other = ends
    os.write(one._write, b"Welcome to n1!\nYou have mail.\n")
    one.send(End())
    assert list(other.receive()) == [End()]


def test_something_else_is_not_taken_for_an_agent(ends):
    one, other = ends
    one.flush()
    os.write(one._write, b"\xff\xff\xff\xff" + b"spam")
    with pytest.raises(ProtocolError, match="bytes was announced"):
        list(other.receive())


def test_a_message_of_no_known_kind_is_an_error(ends):
    one, other = ends
    one.flush()
    os.write(one._write, b"\x00\x00\x00\x01\x2a")
    with pytest.raises(ProtocolError):
        list(other.receive())


@pytest.mark.timed
def test_pipe_to_an_end_that_does_not_read_never_blocks(ends):
    one, other = ends
    began = time.monotonic()
    one.send(FileContent("x.json", bytes(1 << 22)))
    assert time.monotonic() - began < 2
    assert one.backlog_bytes > 1 << 20
    got = []
    while one.backlog_bytes or not got:
        got += other.receive()
        one.flush()
    assert got == [FileContent("x.json", bytes(1 << 22))]


def test_the_end_of_the_other_end_is_noticed(ends):
    one, other = ends
    os.close(one._write)
    assert list(other.receive()) == []
    assert other.closed


@pytest.mark.parametrize("name", ["../x", "/etc/x", ".hidden", "", "a/b"])
def test_a_host_can_write_nowhere_else(agent, files, name):
    tick_until(agent, lambda: agent.ready)
    agent._files = files
    with pytest.raises(ProtocolError):
        agent._write(FileContent(name, b""))
    assert list(files.directory.iterdir()) == []


def test_the_mirror_sends_only_what_is_finished_or_appended(tmp_path, ends):
    one, other = ends
    mirror = Mirror(tmp_path, {"known"})
    for name in ("known", ".being-written", "log", "x.json"):
        (tmp_path / name).write_text("1")
    (tmp_path / "folder").mkdir()
    assert mirror.send(one)
    assert list(other.receive()) == [FileChunk("log", 0, b"1"), FileContent("x.json", b"1")]
    with (tmp_path / "log").open("a") as log:
        log.write("2")
    assert mirror.send(one)
    assert list(other.receive()) == [FileChunk("log", 1, b"2")]


def test_mirror_sends_an_exit_record_whole_and_after_what_the_rank_wrote(tmp_path, ends):
    """The parent must not miss the result, which follows by name."""
    one, other = ends
    files = LaunchFiles(tmp_path)
    for file in (files.exit(0), files.result(0), files.log(0)):
        file.write_text("{}")
    assert Mirror(tmp_path, set()).send(one)
    sent = list(other.receive())
    assert sent == [
        FileContent("rank-0.json", b"{}"),
        FileChunk("rank-0.log", 0, b"{}"),
        FileContent("rank-0.exit", b"{}"),
    ]


def test_mirror_lists_exit_records_before_the_other_files(tmp_path, ends, monkeypatch):
    """Both may be written while the folder is listed."""
    one, other = ends
    files = LaunchFiles(tmp_path)
    files.log(0).write_text("1")
    look, looks = Mirror._files, []

    def look_then_write(mirror):
        found = list(look(mirror))
        if not looks:
            files.result(0).write_text("{}")
            files.exit(0).write_text("{}")
        looks.append(found)
        return iter(found)

    monkeypatch.setattr(Mirror, "_files", look_then_write)
    mirror = Mirror(tmp_path, set())
    for _ in range(2):
        assert mirror.send(one)
    assert [message.name for message in other.receive()] == ["rank-0.json", "rank-0.log", "rank-0.exit"]


def test_mirror_sends_no_exit_record_while_other_files_are_held_back(tmp_path, ends):
    """The other end takes nothing, and the log is long."""
    one, _ = ends
    files = LaunchFiles(tmp_path)
    files.exit(0).write_text("{}")
    files.log(0).write_bytes(bytes(4 << 20))
    mirror = Mirror(tmp_path, set())
    assert not mirror.send(one)
    assert files.exit(0).name not in mirror._sent


@pytest.mark.parametrize(
    ("visible", "counted"), [(None, 2), ("", 0), ("1", 1), ("0,1,2", 2), ("-1", 0), ("0, -1,1", 1)]
)
def test_gpus_are_counted_without_torch(tmp_path, monkeypatch, visible, counted):
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count_gpus(tmp_path) == counted
    assert count_gpus(tmp_path / "no driver") == 0

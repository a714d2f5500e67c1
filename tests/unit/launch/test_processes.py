"""Test with real processes that nothing of a launch is left behind."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from backends.launchers.request import MARKER, Command
from compare.errors import OutputError, UnavailableError
from compare.launch import processes as module
from compare.schema.launch_files import LaunchFiles
from tests.waiting import is_alive

SLEEP = "import time; time.sleep(60)"

# Writes its process id once it stands as the test wants it, and stays.
STAY = "import os, pathlib, time; pathlib.Path({file!r}).write_text(str(os.getpid())); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + STAY
# Starts a child in a session of its own, as launchers do, and ends or stays.
PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {child!r}], start_new_session=True)
{rest}
"""
AWAIT = """
import pathlib, time
while not (pathlib.Path({file!r}).exists() and pathlib.Path({file!r}).read_text()):
    time.sleep(0.01)
"""


class Launch:
    """One launch under test."""

    def __init__(self, folder):
        self.name = str(folder / f"test-{uuid.uuid4()}")
        self.folder = folder
        self.log = folder / "launcher.log"

    def pid_file(self, name):
        return str(self.folder / f"{name}.pid")

    def pids(self):
        return [int(file.read_text()) for file in self.folder.glob("*.pid")]

    def supervise(self, code, on_tick=lambda: None):
        command = Command((sys.executable, "-c", code), {})
        return self.supervise_command(command, on_tick=on_tick)

    def supervise_command(self, command, on_tick=lambda: None, **more):
        more |= {"name": self.name, "log": self.log}
        return module.supervise(command, on_tick=lambda: on_tick() is not False, **more)

    def is_gone(self):
        """Return whether nothing is left.

        A process loses its mark a moment before it has ended.
        """
        deadline = time.monotonic() + 1
        while any(map(is_alive, self.pids())) and time.monotonic() < deadline:
            time.sleep(0.01)
        return not list(module.launch_processes(self.name)) and not any(map(is_alive, self.pids()))

    def when_there(self, name, then):
        """Return an ``on_tick`` that waits for the file of a process, and calls ``then``."""
        file = Path(self.pid_file(name))
        # A file is there a moment before its content is.
        return lambda: then() if file.exists() and file.read_text() else None


@pytest.fixture
def launch(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_GRACE_SECONDS", 1.0)
    launch = Launch(tmp_path)
    yield launch
    left = [
        pid
        for pid in {*launch.pids(), *(p.pid for p in module.launch_processes(launch.name))}
        if is_alive(pid)
    ]
    for pid in left:
        psutil.Process(pid).kill()
    assert not left


# ---- how a launch ends ----


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("print('a')", 0),
        ("import time; time.sleep(0.4); raise SystemExit(4)", 4),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
    ],
)
def test_supervise_returns_the_status_before_the_next_tick(launch, monkeypatch, code, status):
    monkeypatch.setattr(module, "_TICK_SECONDS", 20.0)
    began = time.monotonic()
    assert launch.supervise(code) == status
    assert time.monotonic() - began < 10
    assert launch.is_gone()


def test_supervise_descriptor_that_can_be_read_brings_a_tick_at_once(launch, monkeypatch):
    monkeypatch.setattr(module, "_TICK_SECONDS", 20.0)
    reading, writing = os.pipe()
    os.write(writing, b"x")
    began, ticks = time.monotonic(), iter([True, False])
    assert launch.supervise_command(None, on_tick=lambda: next(ticks), wake=[reading]) is None
    assert time.monotonic() - began < 10
    for descriptor in (reading, writing):
        os.close(descriptor)


def test_supervise_without_pidfd_sees_an_end_at_the_next_tick(launch, monkeypatch):
    def refuse(_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert launch.supervise("raise SystemExit(3)") == 3


# ---- what is left behind ----


KILLS_ITS_RANK = """
import os, pathlib, signal, subprocess, sys, time
rank = subprocess.Popen([sys.executable, "-c", {rank!r}])
signal.signal(signal.SIGTERM, lambda *_: rank.kill())
pathlib.Path({witness!r}).write_text(str(rank.pid))
rank.wait()
"""
LEAVES_A_RECORD = """
import pathlib, signal, sys, time
def leave(*_):
    time.sleep(0.2)
    pathlib.Path({record!r}).touch()
    sys.exit()
signal.signal(signal.SIGTERM, leave)
pathlib.Path({ready!r}).touch()
time.sleep(60)
"""


@pytest.mark.parametrize("alone", [True, False])
def test_rank_leaves_its_record_before_it_or_its_launcher_is_killed(launch, alone):
    """Open MPI kills all ranks at SIGTERM, if it aborts already."""
    files, ready = LaunchFiles(Path(launch.name)), launch.folder / "ready"
    files.directory.mkdir()
    rank = LEAVES_A_RECORD.format(record=str(files.exit(0)), ready=str(ready))
    launcher = KILLS_ITS_RANK.format(rank=rank, witness=str(files.witness(0)))
    status = launch.supervise(
        rank if alone else launcher,
        on_tick=lambda: not (ready.exists() and (alone or files.witnesses())),
    )
    assert status is None
    assert files.exit(0).exists()
    assert launch.is_gone()


def test_end_of_a_stubborn_process_calls_back_meanwhile(launch):
    """An agent stays alive for its parent."""
    calls = []
    file = launch.pid_file("stubborn")
    launch.supervise_command(
        Command((sys.executable, "-c", STUBBORN.format(file=file)), {}),
        on_tick=lambda: not Path(file).exists(),
        while_waiting=lambda: calls.append(time.monotonic()),
    )
    assert calls[-1] - calls[0] > 0.5
    assert max(later - earlier for earlier, later in itertools.pairwise(calls)) < 1
    assert launch.is_gone()


@pytest.mark.parametrize(("child", "grace_seconds"), [(STAY, 60.0), (STUBBORN, 1.0)])
@pytest.mark.parametrize("grand", [True, False], ids=["grandchild in its own session", "child"])
def test_descendants_are_ended_and_not_awaited(launch, monkeypatch, child, grace_seconds, grand):
    """In a container no process reaps orphans, and they stay zombies."""

    def fail():
        raise ValueError

    monkeypatch.setattr(module, "_GRACE_SECONDS", grace_seconds)
    code = child.format(file=launch.pid_file("it"))
    began = time.monotonic()
    with pytest.raises(ValueError):
        launch.supervise(
            PARENT.format(child=code, rest=SLEEP) if grand else code,
            on_tick=launch.when_there("it", fail),
        )
    assert time.monotonic() - began < 30
    assert len(launch.pids()) == 1
    assert launch.is_gone()


@pytest.mark.parametrize("status", [0, 5])
def test_orphans_of_a_launcher_that_exited_are_ended(launch, status):
    file = launch.pid_file("orphan")
    rest = AWAIT.format(file=file) + f"raise SystemExit({status})"
    assert launch.supervise(PARENT.format(child=STAY.format(file=file), rest=rest)) == status
    assert len(launch.pids()) == 1
    assert launch.is_gone()


def test_processes_of_other_launches_are_left_alone(launch):
    other = subprocess.Popen([sys.executable, "-c", SLEEP], env=os.environ | {MARKER: launch.name + "0"})
    unmarked = subprocess.Popen([sys.executable, "-c", SLEEP])
    try:
        assert launch.supervise("raise SystemExit(1)") == 1
        assert (other.poll(), unmarked.poll()) == (None, None)
    finally:
        for process in (other, unmarked):
            process.kill()
            process.wait()


# ---- what a launch starts from ----


@pytest.fixture
def typed_ahead():
    """Put text on the test's own stdin."""
    ours, (reading, writing) = os.dup(0), os.pipe()
    os.write(writing, b"meant for the shell")
    os.dup2(reading, 0)
    yield
    os.dup2(ours, 0)
    for handle in (ours, reading, writing):
        os.close(handle)


def test_child_has_its_words_its_environment_no_secret_and_no_input(launch, monkeypatch, typed_ahead):
    monkeypatch.setenv("FOO_TOKEN", "secret")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    words = "$HOME; touch x `id`"  # no shell reads them
    code = f"""
import os, sys
assert sys.argv[1:] == [{words!r}]
assert os.environ[{MARKER!r}] == {launch.name!r}
assert os.environ["OMP_NUM_THREADS"] == "3"
assert os.environ["NCCL_DEBUG"] == "INFO"
assert "FOO_TOKEN" not in os.environ
assert os.read(0, 1) == b""
"""
    command = Command((sys.executable, "-c", code, words), {"OMP_NUM_THREADS": "3"})
    assert launch.supervise_command(command) == 0, launch.log.read_text()


def test_supervise_command_that_cannot_be_executed_is_named(launch):
    missing = str(launch.folder / "no-such-launcher")
    with pytest.raises(UnavailableError) as caught:
        launch.supervise_command(Command((missing,), {}))
    assert caught.value.exit_code == 4
    assert missing in caught.value.what
    assert "No such file" in caught.value.found
    assert "ringside backends" in caught.value.remedy
    assert launch.is_gone()


def test_supervise_log_that_cannot_be_written_is_named(launch):
    launch.log = launch.folder / "gone" / "launcher.log"
    with pytest.raises(OutputError, match=r"launcher\.log"):
        launch.supervise(SLEEP)
    assert launch.is_gone()


@pytest.mark.parametrize(
    ("pattern", "user", "left"),
    [
        ("mpich_*", os.geteuid(), {"mpich_mapped", "mpich_older"}),
        ("mpich_*", os.geteuid() + 1, {"mpich_mapped", "mpich_own", "mpich_older"}),
        ("", os.geteuid(), {"mpich_mapped", "mpich_own", "mpich_older"}),
    ],
)
def test_end_removes_own_segments_that_no_process_maps(tmp_path, monkeypatch, pattern, user, left):
    """A launch without MPICH leaves all of them alone, and so does another user."""
    monkeypatch.setattr(module, "_SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    began = time.time()
    for name in ("mpich_own", "mpich_older", "mpich_mapped", "other"):
        (tmp_path / name).write_bytes(b"x" * mmap.PAGESIZE)
    os.utime(tmp_path / "mpich_older", (began - 60, began - 60))
    segments = module.Segments(pattern, began - 1) if pattern else None
    with (tmp_path / "mpich_mapped").open("r+b") as file, mmap.mmap(file.fileno(), 0):
        module.end_all(str(tmp_path / "no launch"), segments=segments)
        assert {path.name for path in tmp_path.iterdir()} == left | {"other"}


# Starts an orphan of an empty environment, in a session of its own.
DETACH = """
import subprocess, sys
command = ["/usr/bin/setsid", "-f", sys.executable, "-c", {child!r}]
subprocess.Popen(command, env={{}}, stdin=subprocess.DEVNULL)
"""


def test_orphan_without_environment_and_session_is_ended(launch):
    """An own workload may start it; the agent is its next parent."""
    file = launch.pid_file("orphan")
    code = DETACH.format(child=STUBBORN.format(file=file)) + AWAIT.format(file=file)
    agent = f"""
import sys
from pathlib import Path
from backends.launchers.request import Command
from compare.launch import processes
processes._GRACE_SECONDS = 1.0
processes.adopt_orphans()
command = Command((sys.executable, "-c", {code!r}), {{}})
status = processes.supervise(
    command, name={launch.name!r}, log=Path({str(launch.log)!r}), on_tick=lambda: True
)
raise SystemExit(status)
"""
    done = subprocess.run([sys.executable, "-c", agent], check=False, timeout=60)
    assert (done.returncode, launch.log.read_text()) == (0, "")
    assert len(launch.pids()) == 1
    assert launch.is_gone()

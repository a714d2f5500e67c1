"""The witness of a rank, with real processes."""

import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from compare.schema.launch_files import LaunchFiles
from compare.worker.witness import KILL_SECONDS
from tests.waiting import wait_until

PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from compare.schema.launch_files import LaunchFiles
from compare.worker import witness
{before}
files = LaunchFiles(Path(sys.argv[1]))
witness.fork_witness(files, 3)
(files.directory / "ready").write_text(str(os.getpid()))
{rank}
"""
SLEEP = "time.sleep(60)"


class Started:
    """A witness and its rank."""

    def __init__(self, folder, rank, before=""):
        self.files = LaunchFiles(folder)
        self.files.lease.touch()
        code = PROGRAM.format(rank=rank, before=before)
        self.process = subprocess.Popen([sys.executable, "-c", code, str(folder)])
        ready = folder / "ready"
        wait_until(lambda: ready.exists() and ready.read_text())
        self.rank_pid = int(ready.read_text())

    @property
    def rank(self):
        return psutil.Process(self.rank_pid)

    def record(self):
        """Return the exit code of the witness, and its record."""
        code = self.process.wait(10)
        return code, json.loads(self.files.exit(3).read_text())


@pytest.fixture
def start(tmp_path):
    started = []

    def begin(rank=SLEEP, **more):
        started.append(Started(tmp_path, rank, **more))
        return started[-1]

    yield begin
    for one in started:
        one.process.kill()
        one.process.wait()


IGNORES_CHILDREN = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
"""A parent may have ignored the signal, and a program inherits that."""


@pytest.mark.parametrize(("status", "before"), [(0, ""), (1, ""), (3, ""), (255, ""), (4, IGNORES_CHILDREN)])
def test_witness_of_a_rank_that_exits_records_its_status(start, status, before):
    began = time.time()
    code, record = start(f"os._exit({status})", before=before).record()
    assert code == status
    assert (record["status"], record["signal"]) == (status, None)
    assert (record["ended_by"], record["stopped"]) == ("", False)
    assert began < record["time"] < time.time()


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGUSR1])
def test_witness_of_a_rank_that_is_killed_records_the_signal(start, number):
    started = start(f"os.kill(os.getpid(), {int(number)})")
    code, record = started.record()
    assert code == -number
    assert (record["status"], record["signal"]) == (None, number)
    assert record["ended_by"] == ""
    assert record["pid"] == started.rank_pid


def test_witness_of_a_rank_that_dumps_core_dumps_none_itself(start, tmp_path):
    """The limit of the rank decides on its own core file alone."""
    unlimited = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (-1, -1)); os.chdir(sys.argv[1])"
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != resource.RLIM_INFINITY:
        pytest.skip("core files may not be written here")
    without = "resource.setrlimit(resource.RLIMIT_CORE, (0, -1)); os.kill(os.getpid(), signal.SIGSEGV)"
    code, _ = start(without, before=unlimited).record()
    assert code == -signal.SIGSEGV
    assert [path.name for path in tmp_path.glob("*core*")] == []


def test_witness_writes_its_pid_and_reserves_room_for_its_record(start, tmp_path):
    """On a full disk the exit is still recorded."""
    started, reserved = start(), tmp_path / ".rank-3.exit"
    wait_until(lambda: reserved.exists() and reserved.stat().st_size > 0)  # the rank may be ready before
    room = reserved.stat().st_size
    assert int(started.files.witness(3).read_text()) == started.process.pid == started.rank.ppid()
    memory = psutil.Process(started.process.pid).memory_full_info()
    assert memory.uss < 8 << 20, "it shares most of its memory with its rank"
    started.rank.kill()
    started.record()
    assert len(started.files.exit(3).read_text().rstrip()) < room == started.files.exit(3).stat().st_size


def test_witness_forwards_a_signal_that_ends_once(start, tmp_path):
    """A second one would cut short the rank's stacks."""
    count = (
        "signal.signal(signal.SIGTERM, lambda *_: (files.directory / 'received').open('a').write('x'));"
        " time.sleep(0.5); time.sleep(0.7); os._exit(0)"
    )
    started = start(count)
    for _ in range(2):
        started.process.send_signal(signal.SIGTERM)
        time.sleep(0.4)
    started.record()
    assert (tmp_path / "received").read_text() == "x"


def test_rank_that_a_launcher_signals_too_receives_no_second_signal(start, tmp_path):
    """torchrun signals the whole group."""
    leave = (
        "def leave(*_):\n"
        "    (files.directory / 'received').open('a').write('x')\n"
        "    time.sleep(0.1)\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "time.sleep(60)"
    )
    started = start(leave)
    time.sleep(0.1)
    for process in (started.process, started.rank):
        process.send_signal(signal.SIGTERM)
    assert started.record()[1]["ended_by"] == "signal"
    assert (tmp_path / "received").read_text() == "x"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_witness_forwards_a_signal_that_ends_and_records_that(start, number):
    started = start(f"signal.signal({int(number)}, signal.SIG_DFL); {SLEEP}")
    time.sleep(0.1)
    started.process.send_signal(number)
    code, record = started.record()
    assert (code, record["signal"], record["ended_by"]) == (-number, number, "signal")


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_witness_forwards_a_signal_that_a_rank_handles(start, number):
    """The rank goes on, and its later death is its own."""
    handler = f"signal.signal({int(number)}, lambda *_: (files.directory / 'got').touch())"
    started = start(f"{handler}\nwhile True: {SLEEP}")
    time.sleep(0.2)
    started.process.send_signal(number)
    wait_until((started.files.directory / "got").exists)
    assert started.process.poll() is None
    started.rank.kill()
    assert started.record()[1]["ended_by"] == ""


def test_witness_kills_a_rank_that_ignores_sigterm(start):
    started = start(f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}")
    time.sleep(0.2)
    began = time.monotonic()
    started.process.terminate()
    code, record = started.record()
    assert (code, record["signal"], record["ended_by"]) == (-signal.SIGKILL, signal.SIGKILL, "signal")
    assert 2 <= time.monotonic() - began < 3


@pytest.mark.parametrize(
    ("woken", "seconds", "recorded"),
    [(False, 0.1, True), (True, 0.1, True), (True, KILL_SECONDS + 0.3, False)],
)
def test_witness_wakes_a_stopped_rank_and_records_a_stop_for_a_while(start, woken, seconds, recorded):
    """A launcher may wake a stopped rank in order to end it."""
    started = start()
    started.rank.suspend()
    wait_until(lambda: started.rank.status() == psutil.STATUS_STOPPED)
    if woken:
        started.rank.resume()
    time.sleep(seconds)
    began = time.monotonic()
    started.process.terminate()
    code, record = started.record()
    assert (code, record["signal"], record["stopped"]) == (-signal.SIGTERM, signal.SIGTERM, recorded)
    assert time.monotonic() - began < 1.5


@pytest.mark.parametrize(("both", "ended_by"), [(True, "signal"), (False, "")])
def test_sigterm_to_the_rank_alone_is_its_own_death(start, both, ended_by):
    """The parent sends SIGTERM to all processes, in any order."""
    started = start()
    started.rank.terminate()
    if both:
        time.sleep(0.02)
        started.process.terminate()
    code, record = started.record()
    assert (code, record["ended_by"]) == (-signal.SIGTERM, ended_by)


HOLDS = "import ctypes; ctypes.PyDLL(None).sleep(60)"
"""No thread of Python could check the lease there."""


@pytest.mark.parametrize("rank", [SLEEP, HOLDS], ids=["waits", "waits in C"])
def test_witness_whose_lease_expires_ends_the_rank(start, rank):
    began = time.monotonic()
    code, record = start(rank, before="witness.LEASE_SECONDS = 0.5").record()
    assert (code, record["ended_by"]) == (-signal.SIGTERM, "lease")
    assert 0.5 <= time.monotonic() - began < 4


def test_witness_whose_folder_is_gone_exits_alike(start, tmp_path):
    started = start("time.sleep(0.5); os.rename(sys.argv[1], sys.argv[1] + '-gone'); os._exit(5)")
    assert started.process.wait(10) == 5
    Path(f"{tmp_path}-gone").rename(tmp_path)


def test_rank_has_the_signal_mask_of_its_launcher(start):
    masks = "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})"
    rank = "(files.directory / 'mask').write_text(repr(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
    started = start(rank, before=masks)
    started.record()
    mask = (started.files.directory / "mask").read_text()
    assert "SIGUSR1" in mask
    assert "SIGTERM" not in mask


def test_witness_imports_no_library():
    code = (
        "import sys; import compare.worker.witness, compare.schema.launch_files, backends.launchers; "
        "print(*{name.partition('.')[0] for name in sys.modules} & {'msgspec', 'numpy', 'torch', 'psutil'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""

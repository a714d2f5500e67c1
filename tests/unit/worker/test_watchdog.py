"""What a rank leaves behind when its launcher tells it to end."""

import signal
import subprocess
import sys
import time

import pytest

from compare.launch.failures import Evidence, find_cause, find_unseen, main_stack
from compare.schema.job import read_progress
from compare.schema.launch_files import LaunchFiles

# Named as the process on a rank is, by which its main thread is known.
WORKER = """
import ctypes, sys, time
from pathlib import Path
from backends.base import Placement
from compare.worker.watchdog import Guard
from compare.schema.launch_files import LaunchFiles

files = LaunchFiles(Path(sys.argv[1]))
placement = Placement(rank=0, local_rank=0, world_size=2, local_world_size=2, host="here")
Guard(files, placement, 60.0).start(patience_seconds=60.0)
print("ready", flush=True)
wait = ctypes.PyDLL(None).sleep if sys.argv[2] == "holds the interpreter" else time.sleep
wait(60)
"""


LEFT_NOTHING = {"host": "here", "has_result": False, "failure": None, "log": "", "logged_at": 0.0}


@pytest.fixture
def start(tmp_path):
    files = LaunchFiles(tmp_path / "01-mpi")
    files.directory.mkdir()
    files.lease.touch()
    script = tmp_path / "compare" / "worker" / "__main__.py"
    script.parent.mkdir(parents=True)
    script.write_text(WORKER)
    started = []

    def begin(how):
        process = subprocess.Popen(
            [sys.executable, str(script), str(files.directory), how],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return files, process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def evidence(files, **known):
    found = {"stacks": files.stacks(0).read_text(), "progress": read_progress(files, 0)} | known
    return Evidence(**({"rank": 0, "died_at": None} | found), **LEFT_NOTHING)


def test_a_rank_that_is_told_to_end_says_where_it_stood_even_where_a_library_holds_the_interpreter(start):
    """As MPI does until all have joined; a second later its launcher kills it."""
    files, process = start("holds the interpreter")
    time.sleep(0.3)  # until it does
    process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 10
    while "worker/__main__.py" not in files.stacks(0).read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not files.failure(0).exists(), "nobody let it say that it was ended"
    killed, unseen = evidence(files, died_at=1.0), evidence(files, rank=1, stacks="", progress=None)
    assert main_stack(killed)[0][0].endswith(f"compare/worker/__main__.py:{len(WORKER.splitlines())}")
    assert find_cause([killed, unseen]) is None
    assert find_unseen([killed, unseen]) == unseen


def test_a_rank_that_is_told_to_end_does_and_prints_where_it_stood(start):
    files, process = start("waits")
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=10)
    assert process.returncode == 128 + signal.SIGTERM
    assert "compare/worker/__main__.py" in log
    assert "This rank was ended by its launcher." in log
    assert files.failure(0).exists()


def test_nothing_is_left_where_nobody_was_told_to_end(start):
    files, _ = start("waits")
    assert files.stacks(0).read_text() == ""

"""The watchdog of a rank: its limits, also in a proof, and the stacks it leaves."""

import json
import signal
import subprocess
import sys
import time
from io import BytesIO
from types import SimpleNamespace

import pytest

from compare.launch.failures import Evidence, main_stack
from compare.schema.job import read_progress
from compare.schema.launch_files import LaunchFiles
from compare.worker import watchdog as module
from compare.worker.watchdog import WAIT_SECONDS, PassTimer, Watchdog

STALL = 10.0

# The path of the script is how the main thread of a rank is known.
WORKER = """
import ctypes, sys, time
from pathlib import Path
from compare.worker.watchdog import Watchdog
from compare.schema.launch_files import LaunchFiles

Watchdog(LaunchFiles(Path(sys.argv[1])), 0, float(sys.argv[3])).start(limit_seconds=0)
print("ready", flush=True)
wait = ctypes.PyDLL(None).sleep if sys.argv[2] == "holds the interpreter" else time.sleep
wait(60)
"""
HOW = ("waits", "holds the interpreter")
"""MPI holds the interpreter until all ranks have joined."""


@pytest.fixture
def start(tmp_path):
    files = LaunchFiles(tmp_path / "01-mpi")
    files.directory.mkdir()
    script = tmp_path / "compare" / "worker" / "__main__.py"
    script.parent.mkdir(parents=True)
    script.write_text(WORKER)
    started = []

    def begin(how, stall_seconds=60.0):
        process = subprocess.Popen(
            [sys.executable, str(script), str(files.directory), how, str(stall_seconds)],
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


def assert_it_stood_in_the_last_line(**printed):
    nothing = {"failure": None, "exit": None, "progress": None, "log": "", "stacks": ""}
    rank = Evidence(rank=0, host="here", has_result=False, started=True, **nothing | printed)
    assert main_stack(rank)[0][0].endswith(f"compare/worker/__main__.py:{len(WORKER.splitlines())}")


@pytest.mark.parametrize("how", HOW)
def test_sigterm_writes_the_stacks_and_ends_the_rank(start, how):
    files, process = start(how)
    time.sleep(0.3)  # until it waits
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert process.returncode == -signal.SIGTERM
    assert_it_stood_in_the_last_line(stacks=files.stacks(0).read_text())


@pytest.mark.parametrize("how", HOW)
def test_watchdog_writes_the_stacks_and_ends_the_rank_after_the_stall(start, how):
    files, process = start(how, stall_seconds=0.7)
    _, log = process.communicate(timeout=10)
    assert process.returncode == 1
    assert log.startswith("Timeout (0:00:00.700000)!\n")
    assert_it_stood_in_the_last_line(log=log)
    first = read_progress(files, 0)
    assert (first.stage, first.step, first.limit_seconds) == ("start", 0, 0.7)
    assert files.stacks(0).read_text() == ""


CLOSES = """
import os, sys
from pathlib import Path
from compare.worker.watchdog import Watchdog
from compare.schema.launch_files import LaunchFiles

watchdog = Watchdog(LaunchFiles(Path(sys.argv[1])), 0, 60.0)
watchdog.start(limit_seconds=0)
watchdog.note("data")
{act}
watchdog.note("join")
"""


@pytest.mark.parametrize(
    ("act", "refused"),
    [
        ("os.closerange(3, 1000)", True),
        ("os.closerange(0, 1000)", True),
        ("os.closerange(3, 1000); [os.open(os.devnull, os.O_RDWR) for _ in range(9)]", True),
        ("os.dup2(os.open(os.devnull, os.O_WRONLY), 1)", False),
        ("os.close(os.open(os.devnull, os.O_RDONLY))", False),
    ],
    ids=["closed", "all closed", "replaced", "own output", "own file"],
)
def test_watchdog_refuses_a_workload_that_closes_the_files_of_the_rank(tmp_path, act, refused):
    """Another file or connection would get what is meant for them."""
    code = CLOSES.format(act=act)
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == refused, done.stderr
    if "0, 1000" not in act:
        assert ("Let the workload close only what it has opened" in done.stderr) == refused
    last = (tmp_path / "rank-0.progress").read_text().splitlines()[-1]
    assert json.loads(last)["stage"] == ("data" if refused else "join")


@pytest.mark.parametrize(
    ("step_seconds", "steps"), [(0.0, 5000), (0.005, 1000), (0.25, 20), (4.0, 1), (60.0, 1)]
)
def test_watchdog_steps_at_once_fit_three_times_into_the_stall(step_seconds, steps):
    watchdog = Watchdog(None, None, stall_seconds=15.0)
    assert watchdog.steps_at_once(step_seconds) == steps


@pytest.mark.parametrize(
    ("expected", "limit"),
    [
        ({}, 15.0),
        ({"expected_seconds": 4.0}, 15.0),
        ({"expected_seconds": 6.0}, 18.0),
        ({"expected_seconds": 6.0, "limit_seconds": 300.0}, 300.0),
    ],
)
def test_watchdog_limit_is_three_times_the_expected_time_or_the_stall(monkeypatch, expected, limit):
    timers, notes = [], BytesIO()
    timer = SimpleNamespace(dump_traceback_later=lambda seconds, **how: timers.append((seconds, how)))
    monkeypatch.setattr("compare.worker.watchdog.faulthandler", timer)
    watchdog = Watchdog(None, 1, stall_seconds=15.0)
    watchdog._notes = notes
    watchdog.note("train", 7, **expected)
    assert timers == [(limit, {"exit": True})]
    noted = json.loads(notes.getvalue())
    assert (noted["stage"], noted["step"], noted["limit_seconds"]) == ("train", 7, limit)


# ---- the passes of a proof ----


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves on, and the limits that a watchdog is given."""
    known = SimpleNamespace(now=0.0, limits=[], waits=0.0)
    monkeypatch.setattr(module, "monotonic", lambda: known.now)
    return known


def a_pass_timer(clock, rank=0, **known):
    def note(stage, *, limit_seconds):
        assert stage == "parity"
        clock.limits.append(limit_seconds)

    def barrier():
        clock.now += clock.waits

    watchdog = SimpleNamespace(stall_seconds=STALL, note=note)
    return PassTimer(watchdog, SimpleNamespace(rank=rank, world_size=8, barrier=barrier), **known)


def test_pass_may_take_the_stall_longer_than_the_one_before_it(clock):
    """Making a shard does not count as a pass."""
    pass_timer = a_pass_timer(clock)
    for passes, seconds in ((1, 6.0), (0, 0.1), (0, 0.1), (1, 1.0), (1, 0.5)):
        pass_timer.begin_passes(passes)
        clock.now += seconds
    pass_timer.begin_passes(8)
    assert clock.limits == [STALL, STALL + 6, STALL + 6, STALL + 6, STALL + 1, STALL + 8 * 0.5]


@pytest.mark.parametrize(("rank", "limit"), [(0, STALL + 8 * 2), (3, WAIT_SECONDS)])
def test_rank_that_waits_for_the_first_has_no_limit_and_learns_nothing(clock, rank, limit):
    pass_timer = a_pass_timer(clock, rank)
    pass_timer.begin_passes()
    clock.now += 2
    clock.waits = 100.0
    pass_timer.wait_for_ranks()
    pass_timer.begin_passes()
    assert clock.limits == [STALL, limit, STALL + 2]


def test_first_step_may_compile(clock):
    pass_timer = a_pass_timer(clock, first_seconds=300.0)
    for step in (0, 1):
        pass_timer.begin_step(step)
        pass_timer.begin_passes()
        clock.now += 1
    assert clock.limits == [300.0, STALL + 1]


def test_pass_timer_that_knows_a_pass_begins_with_it(clock):
    a_pass_timer(clock, pass_seconds=4.0).begin_passes()
    assert clock.limits == [STALL + 4]

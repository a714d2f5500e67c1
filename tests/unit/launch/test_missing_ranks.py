"""Who is gone before the first word: in any doubt nobody, whatever is between a launcher and its ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.launchers.request import MARKER
from compare.launch import missing_ranks as rollcall
from compare.launch.missing_ranks import Process, RollCall, find_absent, read_launch
from compare.launch.processes import descendants, end_all

# Rank 1 is gone, and everything else as it is under each launcher.
TORCHRUN = [Process(10, 1), Process(20, 10, 0), Process(21, 20, 0)]
HOROVODRUN = [
    Process(10, 1),
    Process(11, 10, is_tracker=True),
    Process(12, 10),
    Process(13, 12),  # where the shell does not become the rank
    Process(20, 13, 0),
    Process(21, 20),  # a child of the rank, without its environment
]
OVER_MPI = [Process(10, 1), Process(12, 10), Process(13, 12), Process(20, 13, 0)]
MPIRUN = [Process(10, 1), Process(20, 10, 0)]
LAUNCHES = {"torchrun": TORCHRUN, "horovodrun": HOROVODRUN, "horovodrun-mpi": OVER_MPI, "mpirun": MPIRUN}
MIDDLEMAN, RANK = Process(30, 10), Process(31, 10, 1)


@pytest.fixture(params=LAUNCHES.values(), ids=LAUNCHES)
def launch(request):
    return list(request.param)


def test_who_is_no_process_and_will_be_none_is_absent(launch):
    assert find_absent(launch, {1}) == {1}
    assert find_absent(launch[::-1], {1, 2}) == {1, 2}


def test_who_is_there_is_not_absent_however_long_it_takes_to_begin(launch):
    assert find_absent([*launch, RANK], {1}) == set()
    assert find_absent([*launch, RANK], {1, 2}) == {2}


def test_nobody_is_absent_where_a_process_may_become_the_rank(launch):
    assert find_absent([*launch, MIDDLEMAN], {1}) == set()
    assert find_absent([*launch, MIDDLEMAN, Process(31, 30)], {1}) == set(), "its shell"
    assert find_absent([*launch, MIDDLEMAN, Process(31, 30, 1)], {1, 2}) == {2}, "now it has"


def test_nobody_is_absent_where_a_launcher_may_be_about_to_start_it(launch):
    busy = [process._replace(is_asleep=process.pid != 10) for process in launch]
    assert find_absent(busy, {1}) == set()


def test_what_a_rank_does_says_nothing_of_the_others(launch):
    busy = [process._replace(is_asleep=process.pid not in {20, 21}) for process in launch]
    assert find_absent(busy, {1}) == {1}


def test_nobody_is_absent_where_no_rank_is_left_or_none_of_its_starters_belongs_to_the_launch():
    assert find_absent([], {1}) == set()
    assert find_absent([Process(10, 1)], {1}) == set(), "a launcher that has started nobody yet"
    assert find_absent([Process(20, 7, 0)], {1}) == set(), "started through sshd, as the other may be yet"
    assert find_absent([Process(20, 1, 0), Process(10, 1)], {1}) == set(), "an orphan"


def test_a_table_that_goes_round_in_a_circle_is_a_table():
    assert find_absent([Process(10, 20), Process(20, 10, 0)], {1}) == set()
    assert find_absent([Process(10, 11), Process(11, 10)], {1}) == set()


PIDS = range(2, 14)
TABLES = st.lists(
    st.builds(
        Process,
        pid=st.sampled_from(PIDS),
        parent=st.sampled_from([1, *PIDS]),
        rank=st.none() | st.integers(0, 3),
        is_tracker=st.booleans(),
        is_asleep=st.booleans(),
    ),
    unique_by=lambda process: process.pid,
)


def ancestors(process, table):
    by_pid = {other.pid: other for other in table}
    found = []
    for _ in table:
        process = by_pid.get(process.parent)
        if process is None:
            break
        found.append(process)
    return found


@given(TABLES, st.sets(st.integers(0, 3)))
def test_a_process_that_is_not_accounted_for_means_that_nobody_is_absent(table, ranks):
    absent = find_absent(table, ranks)
    named = [process for process in table if process.rank is not None]
    assert absent <= ranks - {process.rank for process in named}
    accounted = {p.pid for rank in named for p in [rank, *ancestors(rank, table)]}
    accounted |= {p.pid for p in table if p.is_tracker or any(a in named for a in ancestors(p, table))}
    if not named or {process.pid for process in table} - accounted:
        assert absent == set()


@given(
    st.sampled_from(list(LAUNCHES.values())), st.lists(st.integers(0, 20), min_size=1, max_size=6), st.data()
)
def test_whoever_is_not_accounted_for_takes_every_suspicion_away(launch, shape, data):
    """However many there are, whoever started them, and in whatever order they are read."""
    table = list(launch)
    for pid, choice in enumerate(shape, start=100):
        parents = [1, *(process.pid for process in table if process.pid not in {20, 21})]
        table.append(Process(pid, parents[choice % len(parents)]))
    assert find_absent(data.draw(st.permutations(table)), {1, 2}) == set()


class Clock:
    """A monotonic clock, and a launch whose processes were looked at when it stood so."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        self.looks = []
        self.look_seconds = 0.0
        self.launch = TORCHRUN
        monkeypatch.setattr("compare.launch.missing_ranks.time.monotonic", lambda: self.now)
        monkeypatch.setattr(rollcall, "read_launch", self._look)

    def _look(self, *_):
        self.looks.append(self.now)
        self.now += self.look_seconds
        return self.launch

    def tick(self, roll, begun, seconds):
        """Ask twice a second, and return what was found, by when."""
        found = {}
        for _ in range(round(seconds * 2)):
            if absent := roll.absent(begun):
                found[self.now - 1000] = absent
            self.now += 0.5
        return found


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def roll():
    return RollCall("launch", "torchrun", range(2))


@pytest.mark.parametrize("begun", [set(), {0, 1}])
def test_nobody_is_looked_at_before_some_have_begun_and_after_all_have(clock, roll, begun):
    assert clock.tick(roll, begun, 60) == {}
    assert clock.looks == []


def test_nobody_is_looked_at_while_ranks_begin_soon_after_each_other(clock):
    roll = RollCall("launch", "torchrun", range(20))
    for rank in range(20):
        assert clock.tick(roll, set(range(rank)), 3) == {}
    assert clock.looks == []


def test_who_is_absent_is_told_after_two_looks_in_a_row(clock, roll):
    found = clock.tick(roll, {0}, 5)
    assert clock.looks[:2] == [1003.0, 1003.5]
    assert min(found) == 3.5
    assert found[3.5] == {1: 3.5}, (
        "dated from when the last began: what others say later, they say because of it"
    )


def test_one_look_is_none_and_two_that_do_not_follow_each_other_are_none(clock, roll):
    clock.tick(roll, {0}, 3)
    for _ in range(5):
        for clock.launch in (TORCHRUN, [*TORCHRUN, MIDDLEMAN]):
            assert clock.tick(roll, {0}, 0.5) == {}
    assert len(clock.looks) == 10


def test_a_launcher_that_starts_others_meanwhile_may_start_the_rank_too(clock):
    """Found at rest as it waited for the one that it had just started, who was not on the list yet."""
    roll = RollCall("launch", "mpirun", range(20))
    assert clock.tick(roll, {0}, 3) == {}
    for rank in range(2, 12):
        clock.launch = [*clock.launch, Process(100 + rank, 10, rank)]
        assert clock.tick(roll, {0}, 0.5) == {}
    assert clock.tick(roll, {0}, 0.5) == {8.0: dict.fromkeys((1, *range(12, 20)), 8.0)}


def test_looks_are_no_closer_together_for_being_asked_more_often(clock, roll):
    assert clock.tick(roll, {0}, 3) == {}
    for _ in range(3):
        assert roll.absent({0}) == {}
    clock.now += 0.1
    assert roll.absent({0}) == {}
    assert len(clock.looks) == 1


def test_where_a_look_takes_long_it_is_rested_longer(clock, roll):
    clock.look_seconds = 0.3
    clock.tick(roll, {0}, 9.5)
    assert [round(look, 1) for look in clock.looks] == [1003.0, 1006.3, 1009.6]


def test_suspicions_end_when_somebody_new_begins(clock):
    roll = RollCall("launch", "torchrun", range(3))
    assert clock.tick(roll, {0}, 3.5) == {}
    assert clock.looks == [1003.0]
    assert clock.tick(roll, {0, 2}, 3.5) == {}
    assert clock.tick(roll, {0, 2}, 0.5) == {7.0: {1: 3.5}}


# Starts what its arguments name: every one a process that sleeps, with these variables; then sleeps itself.
LAUNCHER = """
import os, subprocess, sys, time
with open("/proc/self/comm", "wb") as name:
    name.write("\\u00e9".encode() * 8)  # of which the kernel keeps seven and a half
for variables in sys.argv[1:]:
    environment = dict(pair.split("=") for pair in variables.split(","))
    subprocess.Popen(["sleep", "60"], env=os.environ | environment)
ended = subprocess.Popen(["true"], env=os.environ)
tracker = "import time; time.sleep(60)  # multiprocessing." + "resource_tracker"
subprocess.Popen([sys.executable, "-c", tracker])
print("ready", flush=True)
time.sleep(60)
"""
VARIABLES = {
    "torchrun": "RANK={0},LOCAL_RANK={0},WORLD_SIZE=2,LOCAL_WORLD_SIZE=2",
    "horovodrun": "HOROVOD_RANK={0},HOROVOD_LOCAL_RANK={0},HOROVOD_SIZE=2,HOROVOD_LOCAL_SIZE=2",
    "mpirun": "OMPI_COMM_WORLD_RANK={0},OMPI_COMM_WORLD_LOCAL_RANK={0},OMPI_COMM_WORLD_SIZE=2,"
    "OMPI_COMM_WORLD_LOCAL_SIZE=2",
}


@pytest.fixture
def start(tmp_path):
    mark, started = str(tmp_path), []

    def begin(*variables):
        command = [sys.executable, "-c", LAUNCHER, *variables]
        environment = os.environ | {MARKER: mark}
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        assert started[0].stdout.readline() == "ready\n"
        return mark

    yield begin
    end_all(mark, started)
    for process in started:
        process.communicate()
    assert list(descendants(mark)) == []


def absent_soon(mark, launcher):
    """Whom a look finds absent once the launcher has come to rest."""
    patience = time.monotonic() + 5
    while not (absent := find_absent(read_launch(mark, launcher), {0, 1})) and time.monotonic() < patience:
        time.sleep(0.05)
    return absent


@pytest.mark.parametrize("launcher", VARIABLES)
def test_the_processes_of_a_launch_are_told_apart_by_what_their_launcher_says(start, launcher):
    mark = start(VARIABLES[launcher].format(0))
    assert absent_soon(mark, launcher) == {1}
    found = read_launch(mark, launcher)
    (rank,) = [process for process in found if process.rank is not None]
    (top,) = [process for process in found if process.pid == rank.parent]
    assert (rank.rank, top.rank) == (0, None)
    (tracker,) = [process for process in found if process.is_tracker]
    assert tracker.parent == top.pid
    assert len(found) == 3, "a process that has ended and was not reaped is none"


def test_a_process_of_a_launch_without_its_mark_is_one_of_it(start):
    """As a process becomes another program it has no environment for a moment."""
    mark = start(VARIABLES["torchrun"].format(0), f"{MARKER}=")
    time.sleep(0.2)
    found = read_launch(mark, "torchrun")
    (unmarked,) = {process.pid for process in found} - {process.pid for process in descendants(mark)}
    os.kill(unmarked, signal.SIGKILL)  # by its mark nobody would find it
    assert len(found) == 4
    assert find_absent(found, {1}) == set()


def test_a_launcher_that_is_stopped_may_be_about_to_start_a_rank(start):
    mark = start(VARIABLES["torchrun"].format(0))
    assert absent_soon(mark, "torchrun") == {1}
    top = next(process for process in descendants(mark) if LAUNCHER in process.cmdline())
    top.suspend()
    time.sleep(0.2)
    assert find_absent(read_launch(mark, "torchrun"), {1}) == set()

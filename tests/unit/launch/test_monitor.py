"""What the parent concludes from what a launch left behind, and when it tries a second time."""

import os
import time
from types import SimpleNamespace

import msgspec
import pytest

from compare.errors import LaunchError, StalledError
from compare.launch import arm as launching
from compare.launch.monitor import Watch
from compare.launch.processes import Ending
from compare.schema.files import write_json
from compare.schema.job import Planned, Progress, RankFailure, note_progress, open_progress, read_progress
from compare.schema.launch_files import LaunchFiles
from tests.unit.factories import a_run

STACK = """
Thread 0x0000000000000001 (most recent call first):
  File "{place}", line 7 in wait
  File "/x/compare/worker/__main__.py", line 44 in main
"""
IN_COLLECTIVE = STACK.format(place="/x/torch/distributed/distributed_c10d.py")
LOADING = STACK.format(place="/x/horovod_to_be/loader.py")


@pytest.fixture
def files(tmp_path):
    found = LaunchFiles(tmp_path / "01-ddp")
    found.directory.mkdir()
    found.lease.touch()
    return found


class Place:
    """A launch on this machine whose agent finds that both ranks are alive, or are gone."""

    def __init__(self, files):
        self.files = files
        self.roll = None

    def gone_at(self, _rank):
        return None

    def absent(self, begun):
        return {rank: time.time() - 3.5 for rank in self.roll.absent(begun)} if self.roll else {}

    def host_of(self, _rank):
        return "here"

    def clock_ahead_seconds(self, _rank):
        return 0.0


@pytest.fixture
def watch(files):
    return Watch(Place(files), ranks=2, stall_seconds=30.0)


def a_failure(rank, kind, message):
    return RankFailure(rank=rank, host="here", at=time.time(), kind=kind, message=message)


def note(files, rank, stage, patience_seconds):
    with open_progress(files, rank) as file:
        pid = os.getpid()
        said = Progress(stage=stage, step=0, at=time.time(), patience_seconds=patience_seconds, pid=pid)
        note_progress(file, said)


def test_a_clock_that_is_set_is_no_silence(watch, files, monkeypatch):
    for rank in (0, 1):
        note(files, rank, "train", 30.0)
    assert watch.tick()
    set_at = time.time()
    monkeypatch.setattr("compare.launch.monitor.time.time", lambda: set_at + 3600)
    assert watch.tick()


def test_a_clock_that_is_set_ends_no_launch_whose_ranks_are_done(watch, files, monkeypatch):
    for rank in (0, 1):
        note(files, rank, "end", 30.0)
        files.result(rank).write_text("{}")
    assert watch.tick()
    set_at, done_at = time.time(), time.monotonic()
    monkeypatch.setattr("compare.launch.monitor.time.time", lambda: set_at + 3600)
    assert watch.tick()
    monkeypatch.setattr("compare.launch.monitor.time.monotonic", lambda: done_at + 31)
    assert not watch.tick(), "its launcher does not end"


def test_a_line_of_progress_that_lacks_its_end_is_passed_over(files):
    note(files, 0, "join", 30.0)
    with open_progress(files, 0) as file:
        file.write(b'{"stage":"tra')  # the disk was full
    note(files, 0, "test", 30.0)
    assert read_progress(files, 0).stage == "join"
    note(files, 0, "end", 30.0)
    assert read_progress(files, 0).stage == "end"


@pytest.mark.parametrize(("later", "goes_on"), [(34, True), (36, False)])
def test_a_rank_that_says_nothing_for_longer_than_it_may_is_not_waited_for(
    watch, files, monkeypatch, later, goes_on
):
    for rank in (0, 1):
        note(files, rank, "train", 30.0)
    assert watch.tick()
    heard_at = time.monotonic()
    monkeypatch.setattr("compare.launch.monitor.time.monotonic", lambda: heard_at + later)
    assert watch.tick() is goes_on


@pytest.mark.parametrize(
    ("patience", "said"),
    [
        ((90.0, 90.0), ["made no progress for 90 s", "--stall sets the least patience"]),
        ((30.0, 300.0), ["made no progress for 30 s", "--stall sets the patience"]),
    ],
)
def test_how_long_a_stalled_launch_was_waited_for_is_told(watch, files, patience, said):
    for rank, seconds in enumerate(patience):
        note(files, rank, "train", seconds)
    files.log(0).write_text(f"Timeout (0:00:30)!{IN_COLLECTIVE}")
    with pytest.raises(StalledError) as caught:
        watch.conclude("ddp, round 1", Ending(1, 31.0))
    for words in said:
        assert words in str(caught.value)


def test_a_rank_that_never_began_has_no_log_to_be_read(watch, files):
    note(files, 0, "join", 30.0)
    files.log(0).write_text(f"Timeout (0:00:30)!{IN_COLLECTIVE}")
    with pytest.raises(StalledError, match="rank 1 on") as caught:
        watch.conclude("ddp, round 1", Ending(1, 31.0))
    assert "It never began." in caught.value.found
    assert f"It has no log; what the launcher printed is in {files.directory}." in caught.value.remedy


class Roll:
    """Finds a rank absent, and remembers whom it was told to have begun."""

    def __init__(self, *absent, then=lambda: None):
        self._absent = dict.fromkeys(absent, 3.5)
        self._then = then
        self.asked = []

    def absent(self, begun):
        self.asked.append(set(begun))
        self._then()
        return self._absent


@pytest.fixture
def spot(files):
    return Place(files)


def test_a_rank_that_is_gone_before_its_first_word_has_died_and_nobody_waits_any_longer(spot, files):
    watch, spot.roll = Watch(spot, ranks=2, stall_seconds=30.0), Roll()
    note(files, 0, "join", 30.0)
    assert watch.tick()
    spot.roll = Roll(1)
    assert not watch.tick()
    write_json(files.failure(0), a_failure(0, "ended", "ended by its launcher"))
    with pytest.raises(LaunchError, match=r"rank 1 on .* died") as caught:
        watch.conclude("ddp, round 1", Ending(None, 5.0))
    assert caught.value.found.startswith("It ended before its first word, and its launcher went on")
    assert "It never began." in caught.value.found
    assert f"It has no log; what the launcher printed is in {files.directory}." in caught.value.remedy


def test_what_another_says_of_a_rank_that_is_gone_before_its_first_word_is_no_cause(spot, files):
    """It complains at once; the roll is called seconds later."""
    watch, spot.roll = Watch(spot, ranks=2, stall_seconds=30.0), Roll(1)
    note(files, 0, "join", 30.0)
    complaint = a_failure(0, "raised", "RuntimeError: Connection refused")
    write_json(files.failure(0), msgspec.structs.replace(complaint, at=time.time() - 2.0))
    assert not watch.tick()
    with pytest.raises(LaunchError, match=r"rank 1 on .* died"):
        watch.conclude("ddp, round 1", Ending(1, 5.0))


def test_the_roll_is_not_called_any_more_once_all_have_begun(spot, files):
    watch, spot.roll = Watch(spot, ranks=2, stall_seconds=30.0), Roll()
    assert watch.tick()
    for rank in (1, 0):
        note(files, rank, "start", 30.0)
        assert watch.tick()
    assert watch.tick()
    assert spot.roll.asked == [set(), {1}]


def test_a_rank_that_says_its_first_word_while_it_is_looked_for_is_there(spot, files):
    watch, spot.roll = (
        Watch(spot, ranks=2, stall_seconds=30.0),
        Roll(1, then=lambda: note(files, 1, "start", 30.0)),
    )
    note(files, 0, "join", 30.0)
    assert watch.tick()
    assert watch.tick()


def test_a_rank_that_failed_before_it_could_begin_has_said_so(spot, files):
    watch, spot.roll = Watch(spot, ranks=2, stall_seconds=30.0), Roll(1)
    write_json(files.failure(1), a_failure(1, "raised", "OSError: no room"))
    note(files, 0, "join", 30.0)
    assert watch.tick()
    assert spot.roll.asked == []


def test_what_ranks_say_while_a_launch_is_ended_for_its_length_is_no_cause(watch, files):
    assert watch.tick()
    write_json(files.failure(0), a_failure(0, "ended", "ended by its launcher"))
    write_json(files.failure(1), a_failure(1, "raised", "RuntimeError: Connection closed by peer"))
    with pytest.raises(StalledError, match="did not end within 300 s"):
        watch.conclude("ddp, round 1", Ending(None, 300.0, timed_out=True))


def test_a_rank_that_hung_where_its_own_watchdog_is_patient_is_named_and_not_who_waited_for_it(watch, files):
    files.log(0).write_text(f"Timeout (0:00:30)!{IN_COLLECTIVE}")
    files.stacks(1).write_text(LOADING)
    write_json(files.failure(1), a_failure(1, "ended", "ended by its launcher"))
    with pytest.raises(StalledError, match="rank 1 on") as caught:
        watch.conclude("ddp, round 1", Ending(1, 31.0))
    assert "loader.py:7" in str(caught.value)


def test_a_rank_that_was_gone_before_its_first_word_is_named_with_what_its_launcher_said_of_it(watch, files):
    write_json(files.failure(0), a_failure(0, "ended", "ended by its launcher"))
    files.launcher_log.write_text("ModuleNotFoundError: No module named 'msgspec'")
    with pytest.raises(LaunchError, match=r"rank 1 on .* was gone before it had begun") as caught:
        watch.conclude("ddp, round 1", Ending(1, 1.0))
    assert "No module named 'msgspec'" in caught.value.found


def test_no_rank_is_named_where_the_launcher_was_killed_or_the_parent_gave_no_sign_of_life(watch, files):
    write_json(files.failure(0), a_failure(0, "ended", "left alone"))
    with pytest.raises(LaunchError, match="the launcher was killed"):
        watch.conclude("ddp, round 1", Ending(-9, 1.0))
    files.log(0).write_text("This rank was left alone: its parent gave no sign of life for 6 s.")
    with pytest.raises(LaunchError, match="this program gave no sign of life"):
        watch.conclude("ddp, round 1", Ending(1, 1.0))


@pytest.mark.parametrize(("taken", "times"), [(True, 2), (False, 1)])
def test_a_launch_is_tried_a_second_time_where_its_port_was_taken_and_never_a_third(
    tmp_path, monkeypatch, taken, times
):
    begun = []

    def fail(*_arguments, **options):
        begun.append(options.get("restarted_because", ""))
        raise LaunchError("It failed.")

    monkeypatch.setattr(launching, "_launch_once", fail)
    monkeypatch.setattr(launching, "_port_was_taken", lambda *_: taken)
    run = a_run()
    observer = SimpleNamespace(launch_restarts=lambda *_: None)
    with pytest.raises(LaunchError, match="It failed"):
        launching.launch_arm(run, Planned(1, 1, run.config.arms[0]), tmp_path, None, observer)
    assert len(begun) == times
    assert not begun[0]

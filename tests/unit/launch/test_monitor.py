"""The parent's conclusions from the files of a launch."""

import time

import pytest

from compare.errors import LaunchError, StalledError
from compare.launch.agent.rank_watch import RankWatch
from compare.launch.monitor import SUCCEEDED, Ending, MemoryShortError, Monitor
from compare.schema.job import (
    Progress,
    RankExit,
    RankFailure,
    append_progress,
    open_progress,
    read_progress,
)
from compare.schema.launch_files import LaunchFiles
from compare.schema.memory import Shortage
from compare.schema.results import RankResult
from compare.system.files import tail, write_json
from tests.unit.factories import a_pass, a_rank

STACK = """
Thread 0x0000000000000001 (most recent call first):
  File "{place}", line 7 in wait
  File "/x/compare/worker/__main__.py", line 44 in main
"""
IN_COLLECTIVE = STACK.format(place="/x/torch/distributed/distributed_c10d.py")
LOADING = STACK.format(place="/x/horovod_to_be/loader.py")
OPEN_MPI_HELP = """\
--------------------------------------------------------------------------
A requested component was not found, or was unable to be opened.

Framework: btl
Component: nonsense
--------------------------------------------------------------------------
[vm:7] *** An error occurred in MPI_Init_thread
[vm:7] *** on a NULL communicator
[vm:7] 1 more process has sent help message help-mca-base.txt / find-available:not-valid
"""
ENDED = {"status": None, "signal": 15, "ended_by": "signal"}


@pytest.fixture
def files(tmp_path):
    found = LaunchFiles(tmp_path / "01-ddp")
    found.directory.mkdir()
    found.lease.touch()
    return found


@pytest.fixture
def monitor(files):
    return Monitor(files, ["here"] * 2, 30.0)


def report(monitor):
    """Report all that is in the files, as an agent does."""
    if news := RankWatch(monitor.files).look():
        monitor.note(news)


def failure_of(monitor, status=1, **ending):
    """Return the error of a launch that ended so."""
    report(monitor)
    with pytest.raises(LaunchError) as caught:
        monitor.conclude("ddp, round 1", Ending(status, **{"seconds": 31.0} | ending), RankResult)
    return caught.value


def note(files, rank, stage, limit_seconds=30.0):
    with open_progress(files, rank) as file:
        append_progress(file, Progress(stage=stage, step=0, at=time.time(), limit_seconds=limit_seconds))


def exits(files, rank, status=0, **known):
    """Write the files of a witness whose rank has exited."""
    files.witness(rank).write_text("7")
    record = {"pid": 7, "time": time.time(), "status": status, "signal": None} | known
    write_json(files.exit(rank), RankExit(**record))


def fails(files, rank, message):
    failure = RankFailure(rank=rank, host="here", at=time.time(), message=message)
    write_json(files.failure(rank), failure)
    exits(files, rank, 1)


def test_progress_record_that_was_cut_short_is_skipped(files):
    note(files, 0, "join")
    with open_progress(files, 0) as file:
        file.write(b'{"stage":"tra')  # the disk was full
    note(files, 0, "test")
    assert read_progress(files, 0).stage == "join"
    note(files, 0, "end")
    assert read_progress(files, 0).stage == "end"


@pytest.mark.parametrize(("later", "goes_on"), [(34, True), (36, False)])
def test_monitor_ends_a_launch_whose_watchdog_is_overdue(monitor, files, monkeypatch, later, goes_on):
    for rank in (0, 1):
        note(files, rank, "train")
    report(monitor)
    assert monitor.tick()
    now, set_at = time.monotonic(), time.time()
    monkeypatch.setattr("compare.launch.monitor.time.time", lambda: set_at + 3600)
    assert monitor.tick(), "a clock that is set makes no difference"
    monkeypatch.setattr("compare.launch.monitor.time.monotonic", lambda: now + later)
    assert monitor.tick() is goes_on


@pytest.mark.parametrize(
    ("limits", "printed"),
    [
        ((90.0, 90.0), ["made no progress for 90 s", "stall in --timeout sets the minimum of this limit"]),
        ((30.0, 300.0), ["made no progress for 30 s", "stall in --timeout sets this limit"]),
    ],
)
def test_stall_is_reported_with_the_limit_of_the_rank(monitor, files, limits, printed):
    for rank, seconds in enumerate(limits):
        note(files, rank, "train", seconds)
    files.log(0).write_text(f"Timeout (0:00:30)!{IN_COLLECTIVE}")
    exits(files, 0, 1)
    error = failure_of(monitor)
    assert isinstance(error, StalledError)
    assert [words for words in printed if words not in str(error)] == []


@pytest.mark.parametrize("waiting", [(0,), (0, 1)], ids=["one", "all"])
def test_stall_on_too_few_cores_may_be_slowness(files, waiting):
    monitor = Monitor(files, ["here"] * 2, 30.0, oversubscribed=True)
    for rank in (0, 1):
        note(files, rank, "join")
    for rank in waiting:
        files.log(rank).write_text(f"Timeout (0:00:30)!{IN_COLLECTIVE}")
        exits(files, rank, 1)
    error = failure_of(monitor)
    assert isinstance(error, StalledError)
    assert (
        "Ranks outnumber the cores, so they may only be slow: stall in --timeout sets this limit."
        in error.remedy
    )


@pytest.mark.parametrize(
    ("begun", "stacks", "says"),
    [
        (True, "", ["It wrote no progress record.", "Their files are in {folder}."]),
        # The watchdog of the rank that waits for it fires first.
        (False, LOADING, ["loader.py:7"]),
    ],
    ids=["without a log", "with a longer limit"],
)
def test_stall_of_a_rank_that_another_waits_for_names_it(monitor, files, begun, stacks, says):
    if begun:
        note(files, 0, "join")
    files.log(0).write_text(f"Timeout (0:00:30)!{IN_COLLECTIVE}")
    exits(files, 0, 1)
    if stacks:
        files.stacks(1).write_text(stacks)
    exits(files, 1, **ENDED)
    error = failure_of(monitor)
    assert isinstance(error, StalledError)
    for words in ["rank 1 on", *says]:
        assert words.format(folder=files.directory) in str(error)


def test_failure_on_a_host_is_dated_by_the_clock_of_this_machine(files):
    exits(files, 0, 3)
    exits(files, 1, 4, time=time.time() + 3599.0)
    monitor = Monitor(files, ["here"] * 2, 30.0, clock_ahead_seconds=lambda rank: 3600.0 * rank)
    assert "rank 1 on" in failure_of(monitor).what


def test_failure_while_a_long_launch_is_ended_is_no_cause(monitor, files):
    assert monitor.tick()
    exits(files, 0, **ENDED)
    fails(files, 1, "RuntimeError: Connection closed by peer")
    error = failure_of(monitor, None, seconds=300.0, timed_out=True)
    assert isinstance(error, StalledError)
    assert "did not end within 300 s" in error.what


def test_rank_that_never_started_is_named_with_the_launchers_output(monitor, files):
    exits(files, 0, **ENDED)
    files.launcher_log.write_text("ModuleNotFoundError: No module named 'msgspec'")
    error = failure_of(monitor)
    assert "rank 1 on here never started" in error.what
    assert "No module named 'msgspec'" in error.found


def test_error_shows_the_output_of_three_launchers_the_failed_one_first(files):
    hosts = [f"n{number}" for number in range(9)]
    for rank, host in enumerate(hosts):
        files.directory.joinpath(f"launcher-{host}.log").write_text(f"Printed on {host}.")
        if host != "n7":
            exits(files, rank, **ENDED)
    error = failure_of(Monitor(files, hosts, 30.0))
    assert "rank 7 on n7 never started" in error.what
    assert error.found.splitlines() == [
        *("Printed on n7.", "Printed on n0.", "Printed on n1."),
        "6 other launchers printed something, too.",
    ]


def of_silent_rank(monitor, files, launcher_printed):
    """Return the error of a rank that died and printed nothing."""
    files.log(1).write_text(" \n")
    files.launcher_log.write_text(launcher_printed)
    exits(files, 1, 1)
    error = failure_of(monitor)
    assert "rank 1 on here died" in error.what
    return error


def test_death_of_a_silent_rank_quotes_the_log_that_holds_something(monitor, files):
    files.directory.joinpath("launcher-n2.log").touch()
    error = of_silent_rank(monitor, files, OPEN_MPI_HELP)
    assert "Component: nonsense" in error.found
    assert error.remedy == f"All of the launcher's output is in {files.launcher_log}."


def test_death_without_any_output_names_the_folder(monitor, files):
    error = of_silent_rank(monitor, files, "Process 1 exit with status code 3.\nTraceback (most recent …")
    assert "launcher printed" not in error.found
    assert error.remedy.startswith("Neither the rank nor its launcher printed a reason")


def test_no_rank_is_named_where_the_parent_was_suspended(monitor, files):
    assert "this program sent them no messages" in failure_of(monitor, None, abandoned=True).what
    exits(files, 0, **ENDED | {"ended_by": "lease"})
    assert "this program sent them no messages" in failure_of(monitor).what


def test_tail_of_a_log_of_gigabytes_reads_its_end_alone(tmp_path):
    log = tmp_path / "rank-0.log"
    with log.open("wb") as file:
        file.truncate(1 << 40)  # to read it whole would end in a MemoryError
        file.seek(0, 2)
        file.write(b"\nthe reason\n")
    assert tail(log, lines=1) == "the reason"


OF_ADDRESSES = Shortage(limit_bytes=1 << 30, limit="address space", needed_bytes=3 << 29)


def test_rank_without_memory_is_reported_with_the_limit_and_the_stage(monitor, files):
    note(files, 0, "parity")
    failure = RankFailure(rank=0, host="here", at=time.time(), message="MemoryError", shortage=OF_ADDRESSES)
    write_json(files.failure(0), failure)
    exits(files, 0, 1)
    error = failure_of(monitor)
    assert isinstance(error, MemoryShortError)
    assert (error.shortage, error.stage) == (OF_ADDRESSES, "parity")
    assert "The address space is limited to 1 GiB." in error.found


BAD_ALLOC = "terminate called after throwing an instance of 'std::bad_alloc'"


@pytest.mark.parametrize(
    ("number", "printed", "is_short"), [(9, "", True), (6, BAD_ALLOC, True), (6, "", False)]
)
def test_rank_that_a_signal_ended_lacked_memory_if_that_is_known(monitor, files, number, printed, is_short):
    note(files, 0, "train")
    files.log(0).write_text(printed)
    exits(files, 0, None, signal=number, shortage=OF_ADDRESSES)
    assert isinstance(failure_of(monitor), MemoryShortError) == is_short


def test_results_keep_in_memory_once_what_ranks_report_alike(files, monitor):
    facts = {"torch": "2.13.0", "group": {"library": "gloo", "versions": ["2.13.0"]}}
    written = [a_rank(rank, attestation=facts | {"shard": [rank, 2]}, parity=[a_pass()]) for rank in (0, 1)]
    for result in written:
        write_json(files.result(result.rank), result)
    read = monitor.conclude("ddp, round 1", SUCCEEDED, RankResult)
    assert read == written
    first, second = read
    assert first.attestation["group"] is second.attestation["group"]
    assert first.parity is second.parity
    assert first.attestation is not second.attestation


def test_facts_that_only_look_alike_are_kept_apart(files, monitor):
    written = [a_rank(rank, attestation={"bound": bound}) for rank, bound in enumerate((1, True))]
    for result in written:
        write_json(files.result(result.rank), result)
    read = monitor.conclude("ddp, round 1", SUCCEEDED, RankResult)
    assert [type(result.attestation["bound"]) for result in read] == [int, bool]

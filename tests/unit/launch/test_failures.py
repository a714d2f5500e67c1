"""The root cause is the first rank that failed, never its victim."""

import signal

import msgspec
import pytest

from compare.launch.failures import Evidence, find_cause, find_unstarted, main_stack
from compare.schema.job import Progress, RankExit, RankFailure

DUMP = """something it printed
Timeout (0:00:08)!
Thread 0x00007f0c (most recent call first):
  File "/x/library/threads.py", line 67 in _watch
  File "/x/threading.py", line 982 in run

Thread 0x00007f0d (most recent call first):
{frames}  File "/x/compare/worker/loop.py", line 28 in train
  File "/x/compare/worker/rank.py", line 70 in run
  File "/x/compare/worker/__main__.py", line 44 in main
"""
IN_COLLECTIVE = '  File "/x/torch/autograd/graph.py", line 865 in _engine_run_backward\n'
ELSEWHERE = '  File "/x/data/slow.py", line 7 in read\n'
ENTERED = '  File "/x/backends/strategies/averaging.py", line {line} in sync\n'


def a_rank(rank, **known):
    step = known.pop("step", 30)
    defaults = {
        "host": "here",
        "has_result": False,
        "failure": None,
        "exit": None,
        "started": True,
        "log": "",
        "stacks": "",
        "progress": Progress(stage="train", step=step, at=100.0, limit_seconds=30.0),
    }
    return Evidence(rank=rank, **defaults | known)


def an_exit(at, status=1, **known):
    return RankExit(pid=7, time=at, **{"status": status, "signal": None} | known)


def a_death(at, number=signal.SIGKILL, **known):
    return an_exit(at, None, signal=int(number), **known)


def an_end(at, **known):
    """The exit of a rank that its launcher ended."""
    return a_death(at, signal.SIGTERM, ended_by="signal", **known)


def raised(rank, at, message="RuntimeError: Connection reset by peer", **known):
    failure = RankFailure(rank=rank, host="here", at=at, message=message, where="x.py:3")
    return a_rank(rank, **{"failure": failure, "exit": an_exit(at + 0.1)} | known)


def dumped(rank, at=110.0, frames=IN_COLLECTIVE, **known):
    """A rank that its own watchdog ended."""
    return a_rank(rank, **{"log": DUMP.format(frames=frames), "exit": an_exit(at)} | known)


def ended(rank, at=110.2, frames="", **known):
    """A rank that its launcher ended, with its stacks if any."""
    return a_rank(rank, **{"exit": an_end(at), "stacks": stacks(frames) if frames else ""} | known)


def unstarted(rank):
    return a_rank(rank, started=False, progress=None)


def stacks(frames):
    """What SIGTERM writes."""
    dump = DUMP.format(frames=frames).partition("!\n")[2]
    return dump.replace("Thread 0x00007f0d", "Current thread 0x00007f0d")


def test_cause_of_a_launch_with_all_results_is_none():
    assert find_cause([a_rank(0, has_result=True), a_rank(1, has_result=True)]) is None


def test_cause_among_ranks_that_raised_is_the_first():
    cause = find_cause([raised(0, 105.0), raised(1, 104.0, "ValueError: no")])
    assert (cause.rank, cause.kind, cause.found, cause.where) == (1, "raised", "ValueError: no", "x.py:3")
    assert cause.at == 104.1


def test_cause_among_ranks_that_raised_is_the_first_to_exit():
    """Its connections close at its exit, when the others notice."""
    slow = raised(0, 104.0, exit=an_exit(104.9))
    assert find_cause([slow, raised(1, 104.5)]).rank == 1


def test_cause_is_a_killed_rank_even_if_a_peer_raised_a_moment_before():
    """The clocks of two hosts differ a little. No failure sends SIGKILL."""
    cause = find_cause([raised(0, 104.0), a_rank(1, exit=a_death(104.3))])
    assert (cause.rank, cause.kind) == (1, "died")
    assert "It was killed by SIGKILL (kill -9, or out of memory)." in cause.found


def test_cause_is_the_error_and_not_the_crash_that_it_caused():
    """A peer may abort at a broken connection, without any Python error."""
    crash = f"Fatal Python error: Aborted\n\n{stacks(IN_COLLECTIVE)}"
    victim = a_rank(0, exit=a_death(104.4, signal.SIGABRT), log=crash)
    cause = find_cause([victim, raised(1, 104.0, "ValueError: no")])
    assert (cause.rank, cause.kind) == (1, "raised")


def test_cause_is_the_crash_and_not_the_error_that_it_caused():
    cause = find_cause([raised(0, 104.01), a_rank(1, exit=a_death(104.0, signal.SIGSEGV))])
    assert (cause.rank, cause.kind) == (1, "died")


def test_cause_among_killed_ranks_is_the_first():
    assert find_cause([a_rank(0, exit=a_death(104.4)), a_rank(1, exit=a_death(104.3))]).rank == 1


@pytest.mark.parametrize("by", ["signal", "lease"])
def test_cause_is_never_a_rank_that_was_ended(by):
    victim = a_rank(0, exit=a_death(103.0, signal.SIGTERM, ended_by=by))
    assert find_cause([victim, a_rank(1, exit=a_death(103.5, signal.SIGSEGV))]).rank == 1
    assert find_cause([victim, a_rank(1, has_result=True)]) is None


def test_cause_is_never_a_rank_that_its_witness_killed():
    """The witness sends SIGKILL two seconds after SIGTERM."""
    victim = a_rank(0, exit=a_death(103.0, ended_by="signal"))
    assert find_cause([victim, raised(1, 101.0, "ValueError: no")]).rank == 1
    assert find_cause([victim]) is None


def test_cause_is_never_a_rank_that_raised_because_it_was_ended():
    interrupted = raised(0, 103.0, "KeyboardInterrupt: ", exit=an_exit(103.0, ended_by="signal"))
    assert find_cause([interrupted, a_rank(1, has_result=True)]) is None


@pytest.mark.parametrize("status", [0, 3])
def test_cause_that_exited_by_itself_is_named_with_its_status(status):
    cause = find_cause([a_rank(0, exit=an_exit(103.0, status), progress=None), ended(1)])
    assert (cause.rank, cause.kind) == (0, "died")
    assert cause.found.splitlines() == [
        f"It exited with status {status} and left no result.",
        "It wrote no progress record.",
    ]


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (signal.SIGSEGV, "SIGSEGV (Segmentation fault)"),
        (signal.SIGRTMIN + 3, "signal 37 (Real-time signal 3)"),
    ],
)
def test_cause_that_a_signal_killed_is_named_with_it(number, name):
    cause = find_cause([a_rank(0, exit=a_death(103.0, number))])
    assert cause.found.startswith(f"It was killed by {name}.")


def test_cause_without_an_exit_record_is_a_killed_witness():
    cause = find_cause([raised(0, 103.0), a_rank(1)])
    assert (cause.rank, cause.kind) == (1, "died")
    assert cause.found.startswith("Its witness (the parent process of the rank) was killed")


def test_cause_without_an_exit_record_comes_after_a_killed_rank():
    """mpirun may kill the witnesses of the others afterwards."""
    assert find_cause([a_rank(0), a_rank(1, exit=a_death(104.0))]).rank == 1


def test_cause_without_an_exit_record_is_none_if_the_rank_was_ended():
    """mpirun kills whole process groups one second after SIGTERM."""
    assert find_cause([a_rank(0, stacks=stacks(ELSEWHERE))]) is None
    assert find_cause([a_rank(0, stacks=stacks(ELSEWHERE)), raised(1, 104.0)]).rank == 1


def test_cause_without_an_exit_record_is_a_stall_if_stacks_were_dumped():
    """Open MPI killed the witness while the rank wrote them."""
    cause = find_cause([dumped(0, exit=None), dumped(1, frames=ELSEWHERE)])
    assert (cause.rank, cause.kind) == (1, "stalled")


def test_cause_without_any_process_is_none():
    assert find_cause([unstarted(0), ended(1)]) is None


def test_unstarted_rank_is_found_where_all_others_were_ended():
    assert find_unstarted([ended(0), unstarted(1)]) == unstarted(1)
    assert find_unstarted([a_rank(0, has_result=True), ended(2), unstarted(1)]).rank == 1


def test_unstarted_rank_is_not_found_among_several_or_alone():
    assert find_unstarted([ended(0), unstarted(1), unstarted(2)]) is None
    assert find_unstarted([unstarted(1)]) is None
    assert find_unstarted([ended(0), a_rank(2), unstarted(1)]) is None


def test_crash_is_found_with_its_place_and_the_last_line_before_it():
    log = (
        "no such device\nFatal Python error: Segmentation fault\n\n"
        'Current thread 0x01 (most recent call first):\n  File "/x/a.py", line 9 in f\n'
    )
    cause = find_cause([a_rank(0, exit=a_death(104.0, signal.SIGSEGV), log=log)])
    assert cause.found.splitlines() == [
        "It was killed by SIGSEGV (Segmentation fault).",
        "Fatal Python error: Segmentation fault",
        "It last printed: no such device",
        "Last seen at stage 'train', with 30 steps done.",
    ]
    assert cause.where == "/x/a.py:9"


def test_death_without_any_output_quotes_none():
    assert "printed" not in find_cause([a_rank(0, exit=a_death(104.0))]).found


def test_stall_is_caused_by_the_rank_outside_a_collective():
    cause = find_cause([dumped(0), dumped(1, 110.1, ELSEWHERE)])
    assert (cause.rank, cause.kind, cause.where) == (1, "stalled", "/x/data/slow.py:7")


def test_stall_of_ranks_that_all_wait_names_each_with_its_place():
    cause = find_cause(
        [dumped(rank, frames=IN_COLLECTIVE + ENTERED.format(line=70 + rank)) for rank in (0, 1)]
    )
    assert cause.kind == "deadlocked"
    assert "rank 0 on here at /x/backends/strategies/averaging.py:70" in cause.found
    assert "rank 1 on here at /x/backends/strategies/averaging.py:71" in cause.found


def test_stall_of_ranks_that_all_wait_counts_one_that_lost_its_peer():
    """A peer's watchdog fired first, and its exit broke the connection."""
    traceback = (
        'Traceback (most recent call last):\n  File "/x/compare/worker/__main__.py", line 44, in main\n'
        '  File "/x/mine.py", line 3, in step\n'
        '  File "/x/torch/distributed/distributed_c10d.py", line 9, in all_reduce\n'
        "RuntimeError: Connection closed by peer\n"
    )
    victim = raised(1, 110.2)
    failure = msgspec.structs.replace(victim.failure, traceback=traceback)
    cause = find_cause([dumped(0), victim._replace(failure=failure)])
    assert cause.kind == "deadlocked"
    assert "rank 1 on here at /x/mine.py:3" in cause.found


def test_stall_of_ranks_that_all_wait_is_caused_by_the_one_behind():
    assert find_cause([dumped(0, step=60), dumped(1, step=30)])[:3] == (1, "here", "stalled")


@pytest.mark.parametrize(
    "place",
    [
        "/x/backends/groups/mpi_group.py",
        "/x/backends/strategies/shared_memory/sum.py",
        "/x/torch/distributed/distributed_c10d.py",
        "/x/horovod/torch/mpi_ops.py",
    ],
)
def test_stall_is_not_caused_by_a_rank_that_waits_for_others(place):
    waiting = dumped(0, frames=f'  File "{place}", line 9 in wait\n')
    assert find_cause([waiting, dumped(1, 110.1, ELSEWHERE)]).rank == 1


@pytest.mark.parametrize(("function", "cause"), [("synchronize", 1), ("_lazy_init", 0)])
def test_stall_in_a_device_is_a_wait_only_if_it_synchronises(function, cause):
    first = dumped(0, frames=f'  File "/x/torch/cuda/__init__.py", line 9 in {function}\n')
    assert find_cause([first, dumped(1, 110.1, ELSEWHERE)]).rank == cause


def test_stall_in_the_import_of_mpi_is_a_wait():
    """MPI is initialised at its import, below frames of the import system."""
    importing = '  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed\n' * 5
    waiting = dumped(0, frames=importing + '  File "/x/backends/groups/mpi_group.py", line 12 in <module>\n')
    cause = find_cause([waiting, dumped(1, 110.1, importing + ELSEWHERE)])
    assert (cause.rank, cause.where) == (1, "/x/data/slow.py:7")


def test_stall_in_a_folder_with_a_librarys_name_is_no_wait():
    busy = dumped(1, 110.1, ELSEWHERE.replace("/x/", "/home/me/horovod/"))
    assert find_cause([busy, dumped(0)]).rank == 1


def test_stall_is_caused_by_an_ended_rank_that_waited_for_no_other():
    cause = find_cause([dumped(0), ended(1, frames=ELSEWHERE)])
    assert (cause.rank, cause.kind, cause.where) == (1, "stalled", "/x/data/slow.py:7")


def test_stall_is_not_caused_by_an_ended_rank_that_waited():
    assert find_cause([dumped(0, step=10), ended(1, frames=IN_COLLECTIVE)]).rank == 0


def test_stall_of_a_dump_and_a_killed_wait_is_a_deadlock():
    """Open MPI may kill a rank and its witness after SIGTERM."""
    killed = a_rank(0, stacks=stacks(IN_COLLECTIVE))
    assert find_cause([killed, dumped(1, 102.0)]).kind == "deadlocked"


def test_stall_is_caused_by_an_ended_rank_without_any_trace():
    """It hung before its watchdog started."""
    cause = find_cause([dumped(0), ended(1, progress=None)])
    assert (cause.rank, cause.kind) == (1, "stalled")
    assert cause.found == "It wrote no progress record."


def test_stall_is_caused_by_a_stopped_rank():
    stopped = a_rank(1, exit=an_end(110.1, stopped=True), stacks=stacks(IN_COLLECTIVE))
    cause = find_cause([dumped(0), stopped])
    assert (cause.rank, cause.kind) == (1, "stalled")
    assert cause.found.startswith("It was stopped (SIGSTOP). Last seen at stage 'train'")


def test_stall_of_a_stopped_rank_is_known_without_any_dump():
    stopped = a_rank(1, exit=an_end(110.1, stopped=True))
    assert find_cause([ended(0, frames=IN_COLLECTIVE), stopped])[:3] == (1, "here", "stalled")


def test_stall_of_a_stopped_rank_is_known_though_its_timer_fires():
    stopped = dumped(1, 110.1, exit=an_exit(110.1, ended_by="signal", stopped=True))
    assert find_cause([dumped(0), stopped]).rank == 1


def test_stall_of_ranks_that_wait_comes_after_the_exit_that_they_wait_for():
    cause = find_cause([dumped(0), a_rank(1, exit=an_exit(102.0, 0))])
    assert (cause.rank, cause.kind) == (1, "died")


def test_main_stack_is_found_among_all_threads():
    assert main_stack(dumped(0, frames=ELSEWHERE))[0] == ("/x/data/slow.py:7", "read")
    assert main_stack(a_rank(0, stacks=stacks(ELSEWHERE)))[0] == ("/x/data/slow.py:7", "read")
    assert main_stack(a_rank(0, log="no dump")) == []


def test_main_stack_is_found_where_it_is_cut_off():
    """A dump has a hundred frames, and imports easily fill them."""
    log = f"Timeout (0:00:08)!\nThread 0x00007f0d (most recent call first):\n{ELSEWHERE * 100}  ...\n"
    assert len(main_stack(a_rank(0, log=log))) == 100


def test_dump_is_found_after_a_line_without_a_newline():
    log = f"loading ... {DUMP.format(frames=ELSEWHERE).partition(chr(10))[2]}"
    cause = find_cause([a_rank(0, exit=an_exit(103.0), log=log), a_rank(1, has_result=True)])
    assert (cause.kind, cause.where) == ("stalled", "/x/data/slow.py:7")


def test_stacks_that_a_program_prints_do_not_hide_its_death():
    killed = a_rank(1, exit=a_death(103.0), log=stacks(ELSEWHERE))
    assert find_cause([ended(0), killed])[:3] == (1, "here", "died")

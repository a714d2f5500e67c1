"""The first rank that raised, died or stalled is the cause; never the victim that launchers name."""

import msgspec
import pytest

from compare.launch.failures import Evidence, find_cause, find_unseen, main_stack
from compare.schema.job import Progress, RankFailure

DUMP = """something it printed
Timeout (0:00:08)!
Thread 0x00007f0c (most recent call first):
  File "/x/compare/worker/watchdog.py", line 67 in _watch
  File "/x/threading.py", line 982 in run

Thread 0x00007f0d (most recent call first):
{frames}  File "/x/compare/worker/loop.py", line 28 in train
  File "/x/compare/worker/rank.py", line 70 in run
  File "/x/compare/worker/__main__.py", line 44 in main
"""
IN_COLLECTIVE = '  File "/x/torch/autograd/graph.py", line 865 in _engine_run_backward\n'
ELSEWHERE = '  File "/x/data/slow.py", line 7 in read\n'


def a_rank(rank, **known):
    return Evidence(
        rank=rank,
        host="here",
        has_result=known.pop("has_result", False),
        failure=known.pop("failure", None),
        died_at=known.pop("died_at", None),
        log=known.pop("log", ""),
        stacks=known.pop("stacks", ""),
        logged_at=known.pop("logged_at", 0.0),
        progress=Progress(stage="train", step=known.pop("step", 30), at=100.0, patience_seconds=30.0, pid=1),
    )


def a_failure(rank, at, message="RuntimeError: Connection reset by peer", kind="raised"):
    return RankFailure(rank=rank, host="here", at=at, kind=kind, message=message, where="x.py:3")


def stacks(frames):
    """What SIGTERM leaves."""
    return (
        DUMP.format(frames=frames)
        .partition("!\n")[2]
        .replace("Thread 0x00007f0d", "Current thread 0x00007f0d")
    )


def test_where_all_is_well_there_is_no_cause():
    assert find_cause([a_rank(0, has_result=True), a_rank(1, has_result=True)]) is None


def test_the_first_to_raise_is_the_cause():
    late, early = (
        a_rank(0, failure=a_failure(0, 105.0)),
        a_rank(1, failure=a_failure(1, 104.0, "ValueError: no")),
    )
    cause = find_cause([late, early])
    assert (cause.rank, cause.kind, cause.said, cause.where) == (1, "raised", "ValueError: no", "x.py:3")


def test_a_rank_that_died_silently_precedes_its_peers_complaints():
    """Its death is found by looking, a moment later than a peer's connection breaks."""
    cause = find_cause([a_rank(0, failure=a_failure(0, 104.0)), a_rank(1, died_at=104.3)])
    assert (cause.rank, cause.kind) == (1, "died")
    assert "kill -9" in cause.said


def test_an_error_of_ones_own_is_no_consequence_of_a_death_that_is_found_a_moment_later():
    """Its peer may abort where the connection breaks, without a word that Python could write down."""
    crash = f"Fatal Python error: Aborted\n\n{stacks(IN_COLLECTIVE)}"
    cause = find_cause(
        [a_rank(0, died_at=104.4, log=crash), a_rank(1, failure=a_failure(1, 104.0, "ValueError: no"))]
    )
    assert (cause.rank, cause.kind) == (1, "raised")


def test_a_rank_that_is_killed_long_after_another_raised_is_a_victim():
    cause = find_cause([a_rank(0, failure=a_failure(0, 104.0)), a_rank(1, died_at=109.0)])
    assert (cause.rank, cause.kind) == (0, "raised")


def test_a_rank_that_its_launcher_ended_is_never_the_cause():
    ended = a_rank(0, failure=a_failure(0, 103.0, "ended by its launcher", kind="ended"))
    assert find_cause([ended, a_rank(1, died_at=103.5)]).rank == 1
    assert find_cause([ended, a_rank(1, has_result=True)]) is None


def test_a_rank_that_its_launcher_killed_while_a_library_kept_it_from_saying_so_is_never_the_cause():
    """Whoever loads MPI holds the interpreter until all others have, and is killed a second after SIGTERM."""
    killed = a_rank(0, died_at=103.0, stacks=stacks(ELSEWHERE))
    unseen = a_rank(1)._replace(progress=None)
    assert find_cause([killed, unseen]) is None
    assert find_unseen([killed, unseen]) == unseen
    waiting = a_rank(1, log=DUMP.format(frames=IN_COLLECTIVE), logged_at=102.0)
    assert find_cause([a_rank(0, stacks=stacks(IN_COLLECTIVE)), waiting]).kind == "deadlocked"


def test_a_rank_that_was_gone_before_its_first_word_is_found_where_its_launcher_ended_all_others():
    ended = a_rank(0, failure=a_failure(0, 103.0, "ended by its launcher", kind="ended"))
    unseen = a_rank(1)._replace(progress=None)
    assert find_unseen([ended, unseen]) == unseen
    assert find_unseen([a_rank(0, has_result=True), ended._replace(rank=2), unseen]).rank == 1


def test_nobody_is_found_where_several_ranks_or_all_were_never_seen():
    ended = a_rank(0, failure=a_failure(0, 103.0, "ended by its launcher", kind="ended"))
    unseen = [a_rank(rank)._replace(progress=None) for rank in (1, 2)]
    assert find_unseen([ended, *unseen]) is None
    assert find_unseen(unseen[:1]) is None
    assert find_unseen([ended, a_rank(2), unseen[0]]) is None


def test_a_crash_is_told_with_its_place_after_what_was_printed_last():
    log = (
        "no such device\nFatal Python error: Segmentation fault\n\n"
        'Current thread 0x01 (most recent call first):\n  File "/x/a.py", line 9 in f\n'
    )
    cause = find_cause([a_rank(0, died_at=104.0, log=log)])
    assert cause.said.splitlines() == [
        "Fatal Python error: Segmentation fault",
        "It last printed: no such device",
        "Last seen at stage 'train', with 30 steps done.",
    ]
    assert cause.where == "/x/a.py:9"


def test_of_a_rank_that_died_without_having_printed_anything_no_words_are_told():
    assert "printed" not in find_cause([a_rank(0, died_at=104.0)]).said


def test_of_ranks_that_all_stalled_the_one_outside_a_collective_is_the_cause():
    waiting = a_rank(0, log=DUMP.format(frames=IN_COLLECTIVE), logged_at=110.0)
    busy = a_rank(1, log=DUMP.format(frames=ELSEWHERE), logged_at=110.1)
    cause = find_cause([waiting, busy])
    assert (cause.rank, cause.kind, cause.where) == (1, "stalled", "/x/data/slow.py:7")


ENTERED = '  File "/x/backends/strategies/averaging.py", line {line} in sync\n'


def test_of_ranks_that_all_wait_none_is_the_cause_and_each_is_told_with_its_place():
    ranks = [
        a_rank(rank, log=DUMP.format(frames=IN_COLLECTIVE + ENTERED.format(line=70 + rank)), logged_at=110.0)
        for rank in (0, 1)
    ]
    cause = find_cause(ranks)
    assert cause.kind == "deadlocked"
    assert "rank 0 on here at /x/backends/strategies/averaging.py:70" in cause.said
    assert "rank 1 on here at /x/backends/strategies/averaging.py:71" in cause.said


def test_of_ranks_that_all_wait_one_may_have_lost_the_other_before_its_own_watchdog_was_through():
    dumped = a_rank(0, log=DUMP.format(frames=IN_COLLECTIVE), logged_at=110.0)
    traceback = (
        'Traceback (most recent call last):\n  File "/x/compare/worker/__main__.py", line 44, in main\n'
        '  File "/x/mine.py", line 3, in step\n'
        '  File "/x/torch/distributed/distributed_c10d.py", line 9, in all_reduce\n'
        "RuntimeError: Connection closed by peer\n"
    )
    failure = msgspec.structs.replace(a_failure(1, 110.2), traceback=traceback)
    cause = find_cause([dumped, a_rank(1, failure=failure)])
    assert cause.kind == "deadlocked"
    assert "rank 1 on here at /x/mine.py:3" in cause.said


def test_of_ranks_that_all_wait_the_one_that_is_behind_is_the_cause():
    ranks = [
        a_rank(rank, step=step, log=DUMP.format(frames=IN_COLLECTIVE), logged_at=110.0)
        for rank, step in enumerate((60, 30))
    ]
    assert find_cause(ranks)[:3] == (1, "here", "stalled")


@pytest.mark.parametrize(
    "place",
    [
        "/x/backends/groups/mpi_group.py",
        "/x/backends/strategies/shared_memory/sum.py",
        "/x/torch/distributed/distributed_c10d.py",
        "/x/horovod/torch/mpi_ops.py",
    ],
)
def test_whoever_waits_for_others_is_not_the_cause(place):
    waiting = a_rank(0, log=DUMP.format(frames=f'  File "{place}", line 9 in wait\n'), logged_at=110.0)
    busy = a_rank(1, log=DUMP.format(frames=ELSEWHERE), logged_at=110.1)
    assert find_cause([waiting, busy]).rank == 1


@pytest.mark.parametrize(("function", "cause"), [("synchronize", 1), ("_lazy_init", 0)])
def test_whoever_waits_for_a_device_may_wait_for_others_in_it_but_not_whoever_cannot_open_it(function, cause):
    frames = f'  File "/x/torch/cuda/__init__.py", line 9 in {function}\n'
    first = a_rank(0, log=DUMP.format(frames=frames), logged_at=110.0)
    busy = a_rank(1, log=DUMP.format(frames=ELSEWHERE), logged_at=110.1)
    assert find_cause([first, busy]).rank == cause


def test_whoever_loads_mpi_waits_for_the_others_in_it():
    """MPI is initialised as it is imported, below any number of the import system's own frames."""
    importing = '  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed\n' * 5
    loading = importing + '  File "/x/backends/groups/mpi_group.py", line 12 in <module>\n'
    waiting = a_rank(0, log=DUMP.format(frames=loading), logged_at=110.0)
    busy = a_rank(1, log=DUMP.format(frames=importing + ELSEWHERE), logged_at=110.1)
    cause = find_cause([waiting, busy])
    assert (cause.rank, cause.where) == (1, "/x/data/slow.py:7")


def test_a_folder_of_a_librarys_name_does_not_make_its_code_wait():
    at_home = ELSEWHERE.replace("/x/", "/home/me/horovod/")
    busy = a_rank(1, log=DUMP.format(frames=at_home), logged_at=110.1)
    waiting = a_rank(0, log=DUMP.format(frames=IN_COLLECTIVE), logged_at=110.0)
    assert find_cause([waiting, busy]).rank == 1


def test_a_rank_that_was_ended_before_its_watchdog_could_speak_is_the_cause_where_it_waited_for_nobody():
    waiting = a_rank(0, log=DUMP.format(frames=IN_COLLECTIVE), logged_at=110.0)
    ended = a_rank(
        1, stacks=stacks(ELSEWHERE), failure=a_failure(1, 110.2, "ended by its launcher", kind="ended")
    )
    cause = find_cause([waiting, ended])
    assert (cause.rank, cause.kind, cause.where) == (1, "stalled", "/x/data/slow.py:7")


def test_a_rank_that_was_ended_while_it_waited_is_a_victim():
    waiting = a_rank(0, log=DUMP.format(frames=IN_COLLECTIVE), logged_at=110.0, step=10)
    ended = a_rank(
        1, stacks=stacks(IN_COLLECTIVE), failure=a_failure(1, 110.2, "ended by its launcher", kind="ended")
    )
    assert find_cause([waiting, ended]).rank == 0


def test_a_rank_too_stuck_to_say_so_is_the_cause():
    waiting = a_rank(0, log=DUMP.format(frames=IN_COLLECTIVE), logged_at=110.0)
    assert find_cause([waiting, a_rank(1)]).rank == 1


def test_of_ranks_that_all_wait_the_one_that_did_least_is_the_cause():
    ahead = a_rank(0, log=DUMP.format(frames=IN_COLLECTIVE), logged_at=110.0, step=60)
    behind = a_rank(1, log=DUMP.format(frames=IN_COLLECTIVE), logged_at=110.0, step=30)
    assert find_cause([ahead, behind]).rank == 1


def test_a_rank_that_ended_early_precedes_the_stall_of_those_that_wait_for_it():
    waiting = a_rank(0, log=DUMP.format(frames=IN_COLLECTIVE), logged_at=110.0)
    cause = find_cause([waiting, a_rank(1, died_at=102.0)])
    assert (cause.rank, cause.kind) == (1, "died")


def test_the_main_thread_is_found_among_all():
    assert main_stack(a_rank(0, log=DUMP.format(frames=ELSEWHERE)))[0] == ("/x/data/slow.py:7", "read")
    assert main_stack(a_rank(0, stacks=stacks(ELSEWHERE)))[0] == ("/x/data/slow.py:7", "read")
    assert main_stack(a_rank(0, log="no dump")) == []


def test_the_main_thread_is_found_where_its_stack_is_cut_off():
    """Of a hundred frames, which importing easily fills, the outermost are not dumped."""
    log = f"Timeout (0:00:08)!\nThread 0x00007f0d (most recent call first):\n{ELSEWHERE * 100}  ...\n"
    assert len(main_stack(a_rank(0, log=log))) == 100


def test_a_stall_is_known_where_a_line_was_not_ended_before_it():
    log = f"loading ... {DUMP.format(frames=ELSEWHERE).partition(chr(10))[2]}"
    cause = find_cause([a_rank(0, died_at=103.0, log=log, logged_at=103.0), a_rank(1, has_result=True)])
    assert (cause.kind, cause.where) == ("stalled", "/x/data/slow.py:7")


def test_stacks_that_a_program_prints_of_itself_do_not_excuse_its_death():
    killed = a_rank(1, died_at=103.0, log=stacks(ELSEWHERE))
    ended = a_rank(0, failure=a_failure(0, 103.0, "ended by its launcher", kind="ended"))
    assert find_cause([ended, killed])[:3] == (1, "here", "died")

"""The root cause is the first rank that failed, never its victim."""

import signal

import msgspec
import pytest

from compare.launch.failures import Evidence, find_cause, find_unstarted
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
IN_BACKWARD = ELSEWHERE + '  File "/x/torch/autograd/function.py", line 9 in apply\n' + IN_COLLECTIVE
IN_FORWARD = '  File "/x/torch/nn/parallel/distributed.py", line 1775 in _pre_forward\n'
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


def died(rank, at, number=signal.SIGKILL, log="", **known):
    return a_rank(rank, log=log, exit=a_death(at, number, **known))


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


KILLED = "It was killed by SIGKILL (kill -9, or out of memory)."
WITNESS = "Its witness (the parent process of the rank) was killed"
CLOSED = (
    'Traceback (most recent call last):\n  File "/x/compare/worker/__main__.py", line 44, in main\n'
    '  File "/x/mine.py", line 3, in step\n'
    '  File "/x/torch/distributed/distributed_c10d.py", line 9, in all_reduce\n'
    "RuntimeError: Connection closed by peer\n"
)
ABORTED = f"Fatal Python error: Aborted\n\n{stacks(IN_COLLECTIVE)}"
IMPORTING = '  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed\n' * 5
IN_MPI = IMPORTING + '  File "/x/backends/groups/mpi_group.py", line 12 in <module>\n'
IN_IMPORT = IMPORTING + ELSEWHERE
IN_USERS_FOLDER = ELSEWHERE.replace("/x/", "/home/me/horovod/")
IN_MINE = "rank 1 on here at /x/mine.py:3"
WAITED, BUSY = stacks(IN_COLLECTIVE), stacks(ELSEWHERE)
NO_RECORD = "It wrote no progress record. "
BY_SIGSTOP = "It was stopped (SIGSTOP). Last seen at stage 'train'"
STOPPED = an_exit(110.1, ended_by="signal", stopped=True)
UNFINISHED = f"loading ... {DUMP.format(frames=ELSEWHERE).partition(chr(10))[2]}"
CUT_OFF = f"Timeout (0:00:08)!\nThread 0x01 (most recent call first):\n{ELSEWHERE * 100}  ...\n"
SLOW = "/x/data/slow.py:7"
WAITS = [
    "/x/backends/groups/mpi_group.py",
    "/x/backends/shared_memory/sum.py",
    "/x/torch/distributed/distributed_c10d.py",
    "/x/horovod/torch/mpi_ops.py",
]


def lost_its_peer(rank, at):
    """A peer's watchdog fired first, and its exit broke the connection."""
    victim = raised(rank, at)
    return victim._replace(failure=msgspec.structs.replace(victim.failure, traceback=CLOSED))


def stopped(rank, **known):
    return a_rank(rank, exit=an_end(110.1, stopped=True), **known)


def in_cuda(rank, function):
    return dumped(rank, frames=f'  File "/x/torch/cuda/__init__.py", line 9 in {function}\n')


# The ranks of a launch, and its cause: the rank, the kind, and words of what was found and where.
CAUSES = {
    "all results": ([a_rank(0, has_result=True), a_rank(1, has_result=True)],),
    "the first that raised": ([raised(0, 105.0), raised(1, 104.0, "ValueError: no")], 1, "raised"),
    # Its connections close at its exit, when the others notice.
    "the first to exit": ([raised(0, 104.0, exit=an_exit(104.9)), raised(1, 104.5)], 1, "raised"),
    # The clocks of two hosts differ a little. No failure sends SIGKILL.
    "killed, even if a peer raised before": ([raised(0, 104.0), died(1, 104.3)], 1, "died", KILLED),
    # A peer may abort at a broken connection, without any Python error.
    "an error, not its crash": ([died(0, 104.4, signal.SIGABRT, log=ABORTED), raised(1, 104.0)], 1, "raised"),
    "a crash, not its error": ([raised(0, 104.01), died(1, 104.0, signal.SIGSEGV)], 1, "died"),
    "the first that was killed": ([died(0, 104.4), died(1, 104.3)], 1, "died", KILLED),
    **{
        f"ended by its {by}{' alone' if peer.has_result else ''}": (
            [died(0, 103.0, signal.SIGTERM, ended_by=by), peer],
            *(() if peer.has_result else (1, "died")),
        )
        for by in ("signal", "lease")
        for peer in (died(1, 103.5, signal.SIGSEGV), a_rank(1, has_result=True))
    },
    # The witness sends SIGKILL two seconds after SIGTERM.
    "killed by its witness": ([died(0, 103.0, ended_by="signal"), raised(1, 101.0)], 1, "raised"),
    "killed by its witness alone": ([died(0, 103.0, ended_by="signal")],),
    "raised because it was ended": (
        [raised(0, 103.0, exit=an_exit(103.0, ended_by="signal")), a_rank(1, has_result=True)],
    ),
    **{
        f"exit {status}": (
            *([a_rank(0, exit=an_exit(103.0, status), progress=None), ended(1)], 0, "died"),
            f"It exited with status {status} and left no result.\nIt wrote no progress record. ",
        )
        for status in (0, 3)
    },
    **{
        name: ([died(0, 103.0, number)], 0, "died", f"It was killed by {name}.")
        for number, name in (
            (signal.SIGSEGV, "SIGSEGV (Segmentation fault)"),
            (signal.SIGRTMIN + 3, "signal 37 (Real-time signal 3)"),
        )
    },
    "a killed witness": ([raised(0, 103.0), a_rank(1)], 1, "died", WITNESS),
    # mpirun may kill the witnesses of the others afterwards.
    "a killed rank before a killed witness": ([a_rank(0), died(1, 104.0)], 1, "died"),
    # mpirun kills whole process groups one second after SIGTERM.
    "ended, with its witness": ([a_rank(0, stacks=BUSY)],),
    "ended beside a cause": ([a_rank(0, stacks=BUSY), raised(1, 104.0)], 1, "raised"),
    "a stopped rank in a step that srun killed": ([dumped(0), a_rank(1)], 1, "stalled"),
    # Open MPI may kill it while the rank writes its stacks.
    "a stall with a killed witness": ([dumped(0, exit=None), dumped(1, 110.1, ELSEWHERE)], 1, "stalled"),
    "no process": ([unstarted(0), ended(1)],),
    "outside a collective": ([dumped(0), dumped(1, 110.1, ELSEWHERE)], 1, "stalled", SLOW),
    "the one behind": ([dumped(0, step=60), dumped(1, step=30)], 1, "stalled"),
    "a lost peer is one that waits": ([dumped(0), lost_its_peer(1, 110.2)], None, "deadlocked", IN_MINE),
    **{
        f"a wait in {place}": (
            [dumped(0, frames=f'  File "{place}", line 9 in wait\n'), dumped(1, 110.1, ELSEWHERE)],
            *(1, "stalled"),
        )
        for place in WAITS
    },
    "a wait for a device": ([in_cuda(0, "synchronize"), dumped(1, 110.1, ELSEWHERE)], 1, "stalled"),
    "no wait for a device": ([in_cuda(0, "_lazy_init"), dumped(1, 110.1, ELSEWHERE)], 0, "stalled"),
    # MPI is initialised at its import, below frames of the import system.
    "a wait in MPI's import": ([dumped(0, frames=IN_MPI), dumped(1, 110.1, IN_IMPORT)], 1, "stalled", SLOW),
    "no wait in a user's folder": ([dumped(1, 110.1, IN_USERS_FOLDER), dumped(0)], 1, "stalled"),
    "ended while it waited for no other": ([dumped(0), ended(1, frames=ELSEWHERE)], 1, "stalled", SLOW),
    "not the one ended while it waited": ([dumped(0, step=10), ended(1, frames=IN_COLLECTIVE)], 0, "stalled"),
    # Open MPI may kill a rank and its witness after SIGTERM.
    "a dump and a killed wait": ([a_rank(0, stacks=WAITED), dumped(1, 102.0)], None, "deadlocked"),
    # It hung before its watchdog started.
    "ended without a trace": ([dumped(0), ended(1, progress=None)], 1, "stalled", NO_RECORD),
    "stopped": ([dumped(0), stopped(1, stacks=WAITED)], 1, "stalled", BY_SIGSTOP),
    "stopped, without any dump": ([ended(0, frames=IN_COLLECTIVE), stopped(1)], 1, "stalled"),
    "stopped, yet dumped": ([dumped(0), dumped(1, 110.1, exit=STOPPED)], 1, "stalled"),
    "the exit that the others wait for": ([dumped(0), a_rank(1, exit=an_exit(102.0, 0))], 1, "died"),
    "a dump after a line without a newline": ([dumped(0, log=UNFINISHED)], 0, "stalled", SLOW),
    # A dump has a hundred frames, and imports easily fill them.
    "a dump that is cut off": ([dumped(0, log=CUT_OFF)], 0, "stalled", SLOW),
    "hung while DDP waits": ([dumped(0, frames=IN_FORWARD), ended(1, frames=ELSEWHERE)], 1, "stalled", SLOW),
    "hung in a backward of the user's own": ([dumped(0), ended(1, frames=IN_BACKWARD)], 1, "stalled", SLOW),
    "hung, not busy": ([ended(0, frames=ELSEWHERE), dumped(1, frames=ELSEWHERE)], 1, "stalled", SLOW),
    "killed, although it printed stacks": ([ended(0), died(1, 103.0, log=BUSY)], 1, "died"),
}


@pytest.mark.parametrize("case", CAUSES)
def test_cause_is_the_first_failure_and_no_victim(case):
    ranks, *expected = CAUSES[case]
    cause = find_cause(ranks)
    if not expected:
        assert cause is None
        return
    rank, kind, *words = expected
    assert (cause.kind, cause.host) == (kind, "here")
    assert rank in {cause.rank, None}
    assert "".join(words) in f"{cause.found} {cause.where}"


def test_cause_that_raised_has_its_message_place_and_time():
    cause = find_cause([raised(0, 105.0), raised(1, 104.0, "ValueError: no")])
    assert (cause.found, cause.where, cause.at) == ("ValueError: no", "x.py:3", 104.1)


def test_unstarted_rank_is_found_where_all_others_were_ended():
    assert find_unstarted([ended(0), unstarted(1)]) == unstarted(1)
    assert find_unstarted([a_rank(0, has_result=True), ended(2), unstarted(1)]).rank == 1
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
    assert "printed" not in find_cause([a_rank(0, exit=a_death(104.0))]).found


def test_stall_of_ranks_that_all_wait_names_each_with_its_place():
    entered = [IN_COLLECTIVE + ENTERED.format(line=70 + rank) for rank in (0, 1)]
    cause = find_cause([dumped(rank, frames=frames) for rank, frames in enumerate(entered)])
    assert cause.kind == "deadlocked"
    for rank in (0, 1):
        assert f"rank {rank} on here at /x/backends/strategies/averaging.py:{70 + rank}" in cause.found


def test_stall_of_hundreds_of_ranks_names_the_first_at_each_place():
    entered = [IN_COLLECTIVE + ENTERED.format(line=70 + (rank > 255)) for rank in range(512)]
    cause = find_cause([dumped(rank, frames=frames) for rank, frames in enumerate(entered)])
    places = cause.found.splitlines()[-1].split("; ")
    assert places[1].startswith("rank 256 on here, rank 257 on here, ")
    assert places[1].endswith(" and 250 more at /x/backends/strategies/averaging.py:71")
    assert len(places) == 2

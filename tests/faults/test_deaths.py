"""A rank that dies is named with its cause; nothing is left.

``make test`` runs two faults; those marked ``faults`` are for ``make test-faults``.
"""

import os
import signal
from pathlib import Path

import pytest

from compare.schema.store import read_run
from tests.faults.started import (
    BRIEFLY,
    DEATH_BOUND_SECONDS,
    EARLY,
    KILLED,
    UNRECORDED,
    a_fault,
    by_launcher,
    cases,
    in_pairs,
    kill,
)

NO_RECORD = "It wrote no progress record."
DEATHS = {
    "raise": ["RuntimeError: injected by the test", "sitecustomize.py:"],
    "kill": [KILLED],
    "kill its witness": [UNRECORDED],
    "exit 0": ["It exited with status 0 and left no result."],
    "exit 3": ["It exited with status 3 and left no result."],
    "crash": ["It was killed by SIGSEGV (Segmentation fault).", "ctypes/__init__.py:"],
    "abort": ["It was killed by SIGABRT (Aborted).", "sitecustomize.py:"],
    "out of memory": ["memory", "sitecustomize.py:"],
    f"kill {EARLY}": [KILLED, NO_RECORD],
    f"exit 0 {EARLY}": ["It exited with status 0 and left no result.", NO_RECORD, "printed a reason"],
}
FAILED = {"raise", "out of memory"}
"""The rank itself reports these."""
SLOW = f"be slow {EARLY}"
SLOW_SECONDS = 7.0
"""Of eight: the other rank may be slow as well."""
MEMORY_GROUPS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
LIMITS = ("memory.limit_in_bytes", "memory.max")


# The others end in the same ways. Running out of memory is an error of the rank, as ``raise`` is, and an
# abort is a signal, as a crash is. An exit status and a killed witness have tests of their own below.
IN_CI = [("torchrun", "crash"), ("horovodrun-gloo", f"exit 0 {EARLY}")]


@pytest.mark.parametrize(("launcher", "kind"), cases(DEATHS, *IN_CI))
def test_rank_that_dies_is_named_with_its_cause(start, record, launcher, kind):
    run = start(launcher, fault=a_fault(kind))
    printed, took = run.wait()
    assert_rank_1_is_named(run, printed, took, DEATHS[kind], "failed" if kind in FAILED else "died")
    if kind in FAILED:
        assert "Traceback (most recent call last)" in run.named_file(printed)
    record(f"rank: {kind}", launcher, run.process.returncode, printed, took)


def assert_rank_1_is_named(run, printed, took, words, verb="died"):
    assert run.process.returncode == 6, printed
    assert took < DEATH_BOUND_SECONDS
    assert ": rank 1 on" in printed
    assert f" {verb}." in printed
    for text in words:
        assert text in printed
    run.assert_launched_once(printed)
    assert not read_run(run.directory).complete
    run.assert_nothing_is_left()


@pytest.mark.faults
@pytest.mark.parametrize("kind", [pytest.param("kill", marks=pytest.mark.rest), "exit 0"])
def test_rank_that_dies_is_named_where_others_sleep_in_memory(start, kind):
    """No connection breaks, and a launcher takes an exit with 0 for a success."""
    run = start("manual:mode=shared_memory", fault=a_fault(kind))
    assert_rank_1_is_named(run, *run.wait(), DEATHS[kind])


@pytest.fixture
def memory_group(tmp_path):
    """Make a cgroup with a limit on memory."""
    for parent, limit in zip(MEMORY_GROUPS, LIMITS, strict=True):
        group = parent / f"ringside-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(1 << 28))
        except OSError:
            continue
        yield group
        group.rmdir()
        return
    pytest.skip("no cgroup with a limit on memory can be made here")


@pytest.mark.faults
@pytest.mark.parametrize("launcher", by_launcher("torchrun"))
def test_rank_killed_out_of_memory_is_named_with_sigkill(start, record, memory_group, launcher):
    """The kernel kills the rank, which is larger than its witness."""
    run = start(launcher, fault=a_fault("be killed out of memory") | {"group": str(memory_group)})
    printed, took = run.wait()
    assert_rank_1_is_named(run, printed, took, [KILLED])
    record("rank: be killed out of memory (cgroup)", launcher, run.process.returncode, printed, took)


@pytest.mark.faults
@pytest.mark.parametrize(("launcher", "victim"), in_pairs(("rank", "witness"), ("torchrun", "witness")))
def test_rank_killed_by_another_process_is_named(start, record, launcher, victim):
    words = UNRECORDED if victim == "witness" else KILLED
    fault = f"{'witness of ' * (victim == 'witness')}rank 1: kill -9 from outside"
    assert_killed_is_named(start(launcher), record, launcher, victim, signal.SIGKILL, words, fault)


@pytest.mark.faults
@pytest.mark.parametrize("launcher", by_launcher("horovodrun-mpi"))
def test_rank_ended_by_sigterm_from_outside_is_named(start, record, launcher):
    words, fault = "It was killed by SIGTERM (Terminated).", "rank 1: kill (SIGTERM) from outside"
    assert_killed_is_named(start(launcher), record, launcher, "rank", signal.SIGTERM, words, fault)


def assert_killed_is_named(run, record, launcher, victim, number, words, fault):
    run.wait_for_training()
    for rank in (0, 1):
        assert run.rank(rank).memory_info().rss > 100 << 20
        assert run.witness(rank).memory_full_info().uss < 10 << 20, "a witness is small"
    printed, took = run.wait(since=kill(getattr(run, victim)(), number))
    assert_rank_1_is_named(run, printed, took, [words])
    record(fault, launcher, run.process.returncode, printed, took)


@pytest.mark.faults
@pytest.mark.parametrize("launcher", by_launcher())
def test_rank_that_starts_slowly_is_waited_for(start, launcher):
    assert_the_slow_is_waited_for(start(launcher, *BRIEFLY, fault=a_fault(SLOW)))


@pytest.mark.faults
def test_rank_whose_launcher_starts_it_slowly_is_waited_for(start):
    """Between horovodrun and the rank is another Python process."""
    fault = a_fault(SLOW) | {"module": "horovod.runner.common.util.safe_shell_exec"}
    assert_the_slow_is_waited_for(start("horovod", *BRIEFLY, fault=fault))


def assert_the_slow_is_waited_for(run):
    _, printed = run.process.communicate(timeout=120)
    assert run.process.returncode == 0, printed
    (first, other) = (run.progress(rank)[0]["at"] for rank in (0, 1))
    assert abs(other - first) > SLOW_SECONDS, "no rank was slow"
    run.assert_launched_once(printed)
    assert read_run(run.directory).complete
    run.assert_nothing_is_left()

"""A rank that hangs is named with its place, and ended."""

import pytest

from tests.faults.started import BY_LAUNCHER, HANG_BOUND_SECONDS, STALL_SECONDS, a_fault, cases

HANGS = ("hang", "hang while loading", "hang before rendezvous", "stop")


@pytest.mark.parametrize(("launcher", "kind"), cases(HANGS))
def test_rank_that_hangs_is_named_and_ended(start, record, launcher, kind):
    run = start(launcher, fault=a_fault(kind))
    printed, took = run.wait()
    assert run.process.returncode == 7, printed
    assert took < HANG_BOUND_SECONDS
    assert ": rank 1 on" in printed
    assert "made no progress for 15 s" in printed
    if kind == "stop":
        assert "It was stopped (SIGSTOP)." in printed
    else:
        assert "sitecustomize.py:" in printed, "the place where it hangs is named"
        assert 'sitecustomize.py", line' in run.named_file(printed)
    run.assert_launched_once(printed)
    run.assert_nothing_is_left()
    record(f"rank: {kind} (`--stall 15`)", launcher, run.process.returncode, printed, took)


@pytest.mark.faults
@pytest.mark.parametrize("launcher", BY_LAUNCHER)
def test_ranks_that_wait_for_each_other_are_all_named(start, launcher):
    """Each is in another collective."""
    run = start(launcher, fault=a_fault("hang in a collective"))
    printed, took = run.wait()
    assert took < HANG_BOUND_SECONDS
    assert run.process.returncode == 7, printed
    assert "all ranks waited for each other for 15 s" in printed
    assert "rank 1 on" in printed
    assert "sitecustomize.py:" in printed.partition("rank 1 on")[2]
    assert "/backends/" in printed.partition("rank 0 on")[2].partition("rank 1 on")[0]
    run.assert_launched_once(printed)
    run.assert_nothing_is_left()


@pytest.mark.faults
@pytest.mark.parametrize("model", [pytest.param("mlp", marks=pytest.mark.rest), "wide"])
def test_rank_that_hangs_is_not_one_that_waits_in_shared_memory(start, model):
    """A large model gets no more time: blocks are short enough."""
    fault = a_fault("hang") | {"step": 8}
    run = start("manual:mode=shared_memory", "--model", model, "--warmup", "3", fault=fault)
    printed, took = run.wait()
    assert took < HANG_BOUND_SECONDS
    assert run.process.returncode == 7, printed
    assert ": rank 1 on" in printed, printed
    assert "sitecustomize.py:" in printed
    assert {run.progress(rank)[-1]["limit_seconds"] for rank in (0, 1)} == {STALL_SECONDS}
    run.assert_nothing_is_left()

"""A rank that hangs is named with its place, and ended."""

import pytest

from tests.faults.started import HANG_BOUND_SECONDS, STALL_SECONDS, a_fault, by_launcher, cases

HANGS = ("hang", "hang while loading", "hang before rendezvous", "stop")
IN_CI = [("mpirun", "hang before rendezvous"), ("horovodrun-mpi", "stop")]
"""A rank that hangs in its training is named below too, where the other one sleeps in shared memory."""


@pytest.mark.parametrize(("launcher", "kind"), cases(HANGS, *IN_CI))
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
    record(f"rank: {kind} (stall 15 s)", launcher, run.process.returncode, printed, took)


@pytest.mark.faults
@pytest.mark.parametrize("launcher", by_launcher("torchrun"))
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
    run = start("manual:mode=shared_memory", "--model", model, "--steps", "60epochs:warmup=3", fault=fault)
    printed, took = run.wait()
    assert took < HANG_BOUND_SECONDS
    assert run.process.returncode == 7, printed
    assert ": rank 1 on" in printed, printed
    assert "made no progress for 15 s" in printed
    assert "sitecustomize.py:" in printed
    assert 'sitecustomize.py", line' in run.named_file(printed)
    assert {run.progress(rank)[-1]["limit_seconds"] for rank in (0, 1)} == {STALL_SECONDS}
    run.assert_nothing_is_left()


SLOW_THEN_HANGS = '''
"""Be slow in the first passes of a rank, then hang in one of its losses."""

import os, time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from compare.workload import Workload

HERE = Path(__file__).parent
RANK = int(os.environ.get("RANK") or os.environ["HOROVOD_RANK"])
passes = 0


def loss(model, batch):
    global passes
    passes += 1
    if RANK == {rank} and passes == {hangs}:
        (HERE / "injected" / "injected_at").write_text(str(time.time()))
        time.sleep(1000)  # here
    time.sleep({seconds} if passes <= {slow} else 0)
    return functional.mse_loss(model(batch), batch)


def make():
    model, data = nn.Linear(4, 4), torch.randn(400, 4, generator=torch.Generator().manual_seed(1))
    return Workload(model=model, data=data, loss=loss, optimizer=lambda its: torch.optim.SGD(its, lr=0.1))
'''
TRIED = 2
"""Passes before the proof: one of training, one of the test."""
MANY = [pytest.mark.faults, pytest.mark.rest]


def a_hang(folder, ranks, rank, seconds):
    """Write a workload that hangs in the second step of the proof, and return its line.

    The first step has a pass of each shard, one of all samples on rank 0, and the arm's own. In the second
    one rank 0 hangs in the pass of another shard, and others in their own.
    """
    first = TRIED + ranks + (2 if rank == 0 else 1)
    text = SLOW_THEN_HANGS.format(rank=rank, hangs=first + (1 if rank else 2), seconds=seconds, slow=first)
    (folder / "slow.py").write_text(text)
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# here"))


@pytest.mark.parametrize(
    ("arm", "ranks", "rank", "stall", "seconds"),
    [
        pytest.param("ddp", 2, 1, 5, 0.2, marks=pytest.mark.faults),
        *(pytest.param("horovod", 2, rank, 5, 3, marks=MANY) for rank in (0, 1)),
        *(
            pytest.param(arm, ranks, rank, stall, 0.6 * stall if ranks == 4 else 2, marks=MANY)
            for arm in ("ddp", "manual")
            for ranks, stall in ((4, 6), (8, 20))
            for rank in (0, 1, ranks - 1)
        ),
    ],
)
def test_rank_that_hangs_in_the_proof_after_a_slow_step_is_named_in_time(
    begin, requires_backend, tmp_path, arm, ranks, rank, stall, seconds
):
    requires_backend(arm)
    line = a_hang(tmp_path, ranks, rank, seconds)
    settings = [
        "-np",
        str(ranks),
        "--timeout",
        f"5m:stall={stall}",
        "--steps",
        "4:warmup=1",
        "--backend",
        arm,
    ]
    run = begin(["--workload", f"{tmp_path / 'slow.py'}:make"], *settings, "--batch-size", "4")
    printed, took = run.wait()
    assert run.process.returncode == 7, printed
    assert f": rank {rank} on" in printed
    assert f"slow.py:{line}" in printed
    assert took < stall + seconds + 4
    run.assert_nothing_is_left()

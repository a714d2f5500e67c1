"""A known delay in the ranks of real launches comes back in the figures that it belongs to, and in no others.

Every launch is measured with and without the delay in turns (``injected/sitecustomize.py``), and told apart
again by its raw samples; the intervals over the rounds hold 99.9 %, so that a noisy machine is no failure.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import scipy.stats

from compare.results import read_run
from compare.stats import summarise

ROUNDS = 5
# 28 blocks of 30 steps after the warm-up; what others disturb meanwhile is measured again.
LENGTH = ("--repeats", str(ROUNDS), "--max-reruns", "5", "--warmup", "30", "--steps", "870", "--threads", "1")
# Ranks that do the same work still wait for each other now and then; a straggler takes that waiting over.
TOLERANCE_SECONDS = 0.0003


def a_run(folder, mnist_dir, backend, *arguments, injected=None):
    """Do a run of two ranks, with something injected into all of them, and read its results."""
    environment = dict(os.environ)
    if injected:
        site = folder / "site"
        shutil.copytree(Path(__file__).parent / "injected", site)
        (site / "injected.json").write_text(json.dumps({"seconds": 0.0} | injected))
        environment["PYTHONPATH"] = str(site)
    done = subprocess.run(
        [sys.executable, "-m", "compare", "run", "--backend", backend, "-np", "2"]
        + ["--data-dir", str(mnist_dir), "--output", str(folder / "run"), *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return read_run(folder / "run")


def half(run, *, delayed):
    """Keep of a run only what was measured with the delay, or only what was measured without."""
    launches = [
        msgspec.structs.replace(
            launch,
            ranks=[
                msgspec.structs.replace(rank, blocks=_half(rank.blocks, delayed)) for rank in launch.ranks
            ],
        )
        for launch in run.launches
    ]
    return msgspec.structs.replace(run, launches=launches)


def _half(blocks, delayed):
    kept = []
    for mode in ("training", "reference"):
        own = [block for block in blocks if block.mode == mode]
        kept += [block for block in own if not block.phases][delayed::2]
        for block in own:
            if block.phases:
                phases = {name: times[delayed::2] for name, times in block.phases.items()}
                kept.append(msgspec.structs.replace(block, phases=phases))
    return kept


def changes(run, figure):
    """How much a figure of the arm grew by the delay, in every round, in seconds."""

    def of(round_, *, delayed):
        launches = [launch for launch in run.launches if launch.round == round_]
        summary = summarise(half(msgspec.structs.replace(run, launches=launches), delayed=delayed))
        return figure(summary.arms[-1]).mean

    return [of(round_, delayed=True) - of(round_, delayed=False) for round_ in range(1, ROUNDS + 1)]


def assert_raised_by(seconds, changed):
    interval = scipy.stats.ttest_1samp(changed, 0).confidence_interval(0.999)
    assert interval.low - TOLERANCE_SECONDS <= seconds <= interval.high + TOLERANCE_SECONDS, changed
    return interval


@pytest.fixture(scope="module")
def slow_sync(tmp_path_factory, mnist_dir, requires_backend):
    """2 ms more in every rank's synchronisation."""
    requires_backend("mpi")
    injected = {"change": "slow sync", "seconds": 0.002}
    folder = tmp_path_factory.mktemp("sync")
    return a_run(folder, mnist_dir, "mpi", *LENGTH, injected=injected)


@pytest.fixture(scope="module")
def straggler(tmp_path_factory, mnist_dir, requires_backend):
    """3 ms more in what one of two ranks computes."""
    requires_backend("mpi")
    injected = {"change": "slow computing", "seconds": 0.003}
    folder = tmp_path_factory.mktemp("straggler")
    return a_run(folder, mnist_dir, "mpi", *LENGTH, injected=injected)


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["sync", "exposed", "communication", "blocked"])
def test_a_delay_in_every_ranks_sync_is_sync_cost(slow_sync, figure):
    def of(arm):
        return arm.sync_seconds if figure == "sync" else getattr(arm.detail, f"{figure}_seconds")

    interval = assert_raised_by(0.002, changes(slow_sync, of))
    assert interval.low > 0, interval


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["background", "imbalance", "skew", "forward", "backward", "step"])
def test_a_delay_in_every_ranks_sync_is_nothing_else(slow_sync, figure):
    assert_raised_by(0.0, changes(slow_sync, lambda arm: getattr(arm.detail, f"{figure}_seconds")))


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["sync", "exposed", "imbalance", "skew"])
def test_a_straggler_costs_what_the_others_wait_for_it(straggler, figure):
    """3 (1 - 1/2) ms: the slowest rank takes 3 ms longer, the mean over ranks half of that."""

    def of(arm):
        return arm.sync_seconds if figure == "sync" else getattr(arm.detail, f"{figure}_seconds")

    interval = assert_raised_by(0.0015, changes(straggler, of))
    assert interval.low > 0, interval


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["communication", "background"])
def test_a_straggler_is_no_communication(straggler, figure):
    interval = assert_raised_by(0.0, changes(straggler, lambda arm: getattr(arm.detail, f"{figure}_seconds")))
    assert interval.high < 0.0015, interval


@pytest.mark.slow
def test_the_straggler_is_named(straggler):
    assert [arm.detail.slowest_rank for arm in summarise(half(straggler, delayed=True)).arms] == [1, 1]


def test_the_ranks_of_a_delayed_run_have_trained_alike(slow_sync, straggler):
    # A run whose ranks differ at the end is no run; that the delay changes no bit is said of all of them.
    hashes = {
        launch.ranks[rank].final_hash
        for run in (slow_sync, straggler)
        for launch in run.launches
        if launch.arm == "mpi"
        for rank in (0, 1)
    }
    assert len(hashes) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [("--model", "mlp", "--steps", "200"), ("--model", "convnet", "--steps", "24", "--batch-size", "16")],
    ids=["mlp", "convnet with dropout"],
)
@pytest.mark.parametrize("backend", ["ddp", "horovod", "mpi"])
def test_the_reference_beside_an_arm_does_not_change_its_training(
    tmp_path, mnist_dir, requires_backend, backend, model
):
    """Neither its batches nor what it drops out, to the last bit."""
    requires_backend(backend)
    arguments = (
        "--no-control",
        "--repeats",
        "1",
        "--max-reruns",
        "0",
        "--warmup",
        "4",
        "--threads",
        "1",
        *model,
    )
    found = {}
    for name, injected in (("beside", None), ("alone", {"change": "no reference"})):
        folder = tmp_path / name
        folder.mkdir()
        (launch,) = a_run(folder, mnist_dir, backend, *arguments, injected=injected).launches
        modes = {block.mode for rank in launch.ranks for block in rank.blocks}
        assert modes == ({"training", "reference"} if name == "beside" else {"training"})
        found[name] = {rank.final_hash for rank in launch.ranks}
    assert found["beside"] == found["alone"]
    assert len(found["alone"]) == 1

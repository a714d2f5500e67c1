"""A known delay in the ranks of real launches comes back in the figures that it belongs to, and in no others.

Every launch is measured with and without the delay in turns (``injected/sitecustomize.py``), and told apart
again by its raw samples; the intervals over the rounds hold 99.9 %, so that noise is no failure. The arm is
the quietest that there is: ranks that poll lose whole time slices where others want their cores.
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

from compare.analysis.step_times import foreign_share
from compare.analysis.summary import summarise
from compare.schema.store import read_run

ARM = "manual:mode=shared_memory"
ROUNDS = 5
# 28 blocks of 30 steps after the warm-up; what others disturb meanwhile is measured again.
LENGTH = ("--repeats", str(ROUNDS), "--max-reruns", "3", "--warmup", "30", "--steps", "870", "--threads", "1")
# A delay does more than to delay: caches grow cold, and ranks that were late by turns wait no more.
TOLERANCE_SECONDS = 0.0003

# Of a whole run of up to 16 launches.
LONGEST_SECONDS = 400

pytestmark = [pytest.mark.long, pytest.mark.timeout(LONGEST_SECONDS + 20)]


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
        timeout=LONGEST_SECONDS,
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


def quietest(run):
    """The rounds in which others used least, also of those set aside: chosen by them, never by a figure."""
    launches = sorted([*run.launches, *run.set_aside], key=lambda launch: launch.number)
    rounds = [launches[first : first + 2] for first in range(0, len(launches), 2)]
    rounds.sort(key=lambda pair: max(map(foreign_share, pair)))
    return [msgspec.structs.replace(run, launches=pair, set_aside=[]) for pair in rounds[:ROUNDS]]


def changes(run, figure):
    """How much a figure of the arm grew by the delay, in seconds, in every round that is judged."""

    def of(round_, *, delayed):
        return figure(summarise(half(round_, delayed=delayed)).arms[-1]).mean

    return [of(round_, delayed=True) - of(round_, delayed=False) for round_ in quietest(run)]


def assert_raised_by(seconds, changed):
    interval = scipy.stats.ttest_1samp(changed, 0).confidence_interval(0.999)
    assert interval.low - TOLERANCE_SECONDS <= seconds <= interval.high + TOLERANCE_SECONDS, changed
    return interval


@pytest.fixture(scope="module")
def slow_sync(tmp_path_factory, mnist_dir, requires_backend):
    """2 ms more in every rank's synchronisation."""
    requires_backend("manual")
    injected = {"change": "slow sync", "seconds": 0.002}
    folder = tmp_path_factory.mktemp("sync")
    return a_run(folder, mnist_dir, ARM, *LENGTH, injected=injected)


@pytest.fixture(scope="module")
def straggler(tmp_path_factory, mnist_dir, requires_backend):
    """3 ms more in what one of two ranks computes."""
    requires_backend("manual")
    injected = {"change": "slow computing", "seconds": 0.003}
    folder = tmp_path_factory.mktemp("straggler")
    return a_run(folder, mnist_dir, ARM, *LENGTH, injected=injected)


@pytest.mark.parametrize("figure", ["sync", "exposed", "communication", "blocked"])
def test_a_delay_in_every_ranks_sync_is_sync_cost(slow_sync, figure):
    def of(arm):
        return arm.sync_seconds if figure == "sync" else getattr(arm.detail, f"{figure}_seconds")

    interval = assert_raised_by(0.002, changes(slow_sync, of))
    assert interval.low > 0, interval


@pytest.mark.parametrize("figure", ["background", "imbalance", "skew", "forward", "backward", "step"])
def test_a_delay_in_every_ranks_sync_is_nothing_else(slow_sync, figure):
    interval = assert_raised_by(0.0, changes(slow_sync, lambda arm: getattr(arm.detail, f"{figure}_seconds")))
    assert interval.high < 0.002, interval


@pytest.mark.parametrize("figure", ["sync", "exposed", "imbalance", "skew"])
def test_a_straggler_costs_what_the_others_wait_for_it(straggler, figure):
    """3 (1 - 1/2) ms: the slowest rank takes 3 ms longer, the mean over ranks half of that."""

    def of(arm):
        return arm.sync_seconds if figure == "sync" else getattr(arm.detail, f"{figure}_seconds")

    interval = assert_raised_by(0.0015, changes(straggler, of))
    assert interval.low > 0, interval


@pytest.mark.parametrize("figure", ["communication", "background"])
def test_a_straggler_is_no_communication(straggler, figure):
    interval = assert_raised_by(0.0, changes(straggler, lambda arm: getattr(arm.detail, f"{figure}_seconds")))
    assert interval.high < 0.0015, interval


def test_the_straggler_is_named(straggler):
    assert [arm.detail.slowest_rank for arm in summarise(half(straggler, delayed=True)).arms] == [1, 1]


def test_the_ranks_of_a_delayed_run_have_trained_alike(slow_sync, straggler):
    # A run whose ranks differ at the end is no run; that the delay changes no bit is said of all of them.
    hashes = {
        launch.ranks[rank].final_hash
        for run in (slow_sync, straggler)
        for launch in run.launches
        if launch.arm == ARM
        for rank in (0, 1)
    }
    assert len(hashes) == 1


MLP = ("--model", "mlp", "--steps", "200")
CONVNET = ("--model", "convnet", "--steps", "24", "--batch-size", "16")


@pytest.mark.parametrize(
    ("backend", "model"),
    [("ddp", MLP), ("ddp", CONVNET), ("horovod", CONVNET), ("mpi", CONVNET)],
    ids=["ddp, mlp", "ddp, dropout", "horovod, dropout", "mpi, dropout"],
)
def test_the_reference_beside_an_arm_does_not_change_its_training(
    tmp_path, mnist_dir, requires_backend, backend, model
):
    """Neither its batches nor what it drops out, to the last bit."""
    requires_backend(backend)
    length = ("--repeats", "1", "--max-reruns", "0", "--warmup", "4", *model)
    arguments = ("--no-control", "--threads", "1", *length)
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

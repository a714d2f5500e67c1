"""Test that a known delay appears in the right figures only.

``injected/sitecustomize.py`` adds the delay to every other block, and the raw samples tell which. The
intervals over the rounds hold 99.9 %, so that noise does not fail the test. The arm is the least noisy
one: ranks that poll lose whole time slices on busy cores.
"""

import msgspec
import pytest
import scipy.stats

from compare.analysis import analyse
from compare.analysis.figures import LaunchFigures
from compare.schema.store import read_run
from tests.comparing import compare, inject

ARM = "manual:mode=shared_memory"
ROUNDS = 5
# 28 blocks of 30 steps after the warm-up. Noisy rounds are repeated.
LENGTH = ("--repeats", str(ROUNDS), "--steps", "870:warmup=30", "--threads", "1")
# A delay has side effects: caches grow cold, and ranks that took turns being late stop doing so.
TOLERANCE_SECONDS = 0.0003

LONGEST_SECONDS = 400
"""Maximum time for a whole run of up to 16 launches."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(LONGEST_SECONDS + 20)]


def a_run(folder, mnist_dir, backend, *arguments, injected=None):
    """Run two ranks with an injected change, and read the results."""
    environment = {}
    if injected:
        environment = inject("e2e/injected", folder / "injection", {"seconds": 0.0} | injected)
    done = compare(
        *("run", "--backend", backend, "-np", 2, "--data", mnist_dir),
        *("--output", folder / "run", *arguments),
        environment=environment,
        timeout=LONGEST_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return read_run(folder / "run")


def half(run, *, delayed):
    """Keep only the blocks with the delay, or only those without."""
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
    """Return the rounds with the least other CPU load.

    Discarded rounds take part. The choice never depends on a measured figure.
    """
    launches = sorted([*run.launches, *run.discarded], key=lambda launch: launch.number)
    rounds = [launches[first : first + 2] for first in range(0, len(launches), 2)]
    rounds.sort(key=lambda pair: max(LaunchFigures(one).other_cpu_load for one in pair))
    return [msgspec.structs.replace(run, launches=pair, discarded=[]) for pair in rounds[:ROUNDS]]


def changes(run, figure):
    """Return the seconds that the delay added to a figure, by round."""

    def of(round_, *, delayed):
        return figure(analyse(half(round_, delayed=delayed)).summary.arms[-1]).mean

    return [of(round_, delayed=True) - of(round_, delayed=False) for round_ in quietest(run)]


def assert_raised_by(seconds, changed):
    interval = scipy.stats.ttest_1samp(changed, 0).confidence_interval(0.999)
    assert interval.low - TOLERANCE_SECONDS <= seconds <= interval.high + TOLERANCE_SECONDS, changed
    return interval


def delayed(change, seconds):
    """Return a fixture that runs with so long a delay."""

    @pytest.fixture(scope="module")
    def run(tmp_path_factory, mnist_dir, requires_backend):
        requires_backend("manual")
        injected = {"change": change, "seconds": seconds}
        return a_run(tmp_path_factory.mktemp("delayed"), mnist_dir, ARM, *LENGTH, injected=injected)

    return run


slow_sync = delayed("slow sync", 0.002)
"""Every rank's synchronisation takes 2 ms more."""
straggler = delayed("slow computing", 0.003)
"""One of two ranks computes for 3 ms more."""


def of_an_arm(figure):
    return lambda arm: arm.sync_seconds if figure == "sync" else getattr(arm.detail, f"{figure}_seconds")


@pytest.mark.parametrize("figure", ["sync", "exposed", "communication", "blocked"])
def test_delay_in_every_ranks_sync_is_sync_cost(slow_sync, figure):
    interval = assert_raised_by(0.002, changes(slow_sync, of_an_arm(figure)))
    assert interval.low > 0, interval


@pytest.mark.parametrize("figure", ["background", "imbalance", "skew", "forward", "backward", "optimizer"])
def test_delay_in_every_ranks_sync_changes_no_other_figure(slow_sync, figure):
    interval = assert_raised_by(0.0, changes(slow_sync, of_an_arm(figure)))
    assert interval.high < 0.002, interval


@pytest.mark.parametrize("figure", ["sync", "exposed", "imbalance", "skew"])
def test_straggler_costs_the_time_that_the_others_wait(straggler, figure):
    """Expect 3 (1 - 1/2) ms more.

    The slowest rank takes 3 ms longer, and the mean over ranks half of that.
    """
    interval = assert_raised_by(0.0015, changes(straggler, of_an_arm(figure)))
    assert interval.low > 0, interval


@pytest.mark.parametrize("figure", ["communication", "background"])
def test_straggler_does_not_change_communication(straggler, figure):
    interval = assert_raised_by(0.0, changes(straggler, of_an_arm(figure)))
    assert interval.high < 0.0015, interval


def test_straggler_is_named_as_the_slowest_rank(straggler):
    assert [arm.detail.slowest_rank for arm in analyse(half(straggler, delayed=True)).summary.arms] == [1, 1]


def test_delay_does_not_change_the_trained_parameters(slow_sync, straggler):
    # Ranks that differ at the end fail their run. This also compares the runs with each other.
    hashes = {
        launch.ranks[rank].final_hash
        for run in (slow_sync, straggler)
        for launch in run.launches
        if launch.arm == ARM
        for rank in (0, 1)
    }
    assert len(hashes) == 1


MLP = ("--model", "mlp", "--steps", "200:warmup=4")
CONVNET = ("--model", "convnet", "--steps", "24:warmup=4", "--batch-size", "16")


@pytest.mark.parametrize(
    ("backend", "model"),
    [("ddp", MLP), ("ddp", CONVNET), ("horovod", CONVNET), ("mpi", CONVNET)],
    ids=["ddp, mlp", "ddp, dropout", "horovod, dropout", "mpi, dropout"],
)
def test_reference_beside_an_arm_does_not_change_its_training(
    tmp_path, mnist_dir, requires_backend, backend, model
):
    """Compare to the last bit: neither its batches nor its dropout change."""
    requires_backend(backend)
    length = ("--repeats", "1", "--interleave", "auto:reruns=0", *model)
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

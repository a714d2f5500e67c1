"""Test arms that declare something else: one process, and sharded optimizer state."""

import os
import subprocess
import sys

import pytest

from compare.analysis import analyse
from compare.schema.arms import Arm
from compare.schema.store import read_run


@pytest.fixture(scope="module")
def ran(tmp_path_factory, mnist_dir):
    """Run zero and single beside DDP and the control: two ranks, Adam."""
    folder = tmp_path_factory.mktemp("declared") / "run"
    command = [
        *(sys.executable, "-m", "compare", "run", "--max-reruns", "0", "--strict"),
        *("--backend", "ddp,zero,single", "-np", "2", "--threads", "1", "--optimizer", "adam"),
        *("--model", "mlp:784-16-10", "--batch-size", "32", "--steps", "40", "--warmup", "10"),
        *("--repeats", "1", "--data-dir", str(mnist_dir), "--output", str(folder)),
    ]
    done = subprocess.run(
        command,
        env=os.environ | {"COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return read_run(folder), done.stdout


def ranks_of(run, label):
    (launch,) = run.of(Arm(label))
    return launch.ranks


def test_single_is_one_process_with_all_threads_and_the_global_batch(ran):
    run, _ = ran
    (rank,) = ranks_of(run, "single")
    assert rank.attestation["threads"] == 2
    assert rank.attestation["batch"] | {"dtype": ""} == {
        "samples": 64,
        "dtype": "",
        "shard": [0, 1],
        "training_samples": 60_000,
    }
    assert rank.evaluation.samples == 10_000
    assert [block for block in rank.blocks if block.mode == "reference"] == []


def test_single_has_an_efficiency_and_no_sync_cost(ran):
    run, printed = ran
    single = next(arm for arm in analyse(run).summary.arms if arm.arm == "single")
    assert single.efficiency is not None
    assert (single.sync_seconds, single.sync_share) == (None, None)
    assert single.samples_per_second.mean == pytest.approx(64 / single.step_seconds.mean)
    assert "single: one process with all threads of a host and the global batch of 64." in printed
    assert "CONDITIONS DIFFER" not in printed


def test_single_trains_what_the_other_arms_train(ran):
    summary = analyse(ran[0]).summary
    of = {arm.arm: arm for arm in summary.arms}
    assert of["single"].parity.outcome == "passed"
    assert of["single"].test_loss == pytest.approx(of["ddp"].test_loss, rel=1e-3)


def test_zero_ends_with_the_parameters_of_ddp_and_a_part_of_the_state(ran):
    run, printed = ran
    hashes = {rank.final_hash for label in ("ddp", "zero") for rank in ranks_of(run, label)}
    assert len(hashes) == 1
    held = {label: [rank.attestation["held"] for rank in ranks_of(run, label)] for label in ("ddp", "zero")}
    whole = held["ddp"][0]["optimizer_state_bytes"]
    assert [own["optimizer_state_bytes"] for own in held["ddp"]] == [whole] * 2
    assert sum(own["optimizer_state_bytes"] for own in held["zero"]) == whole
    assert "bytes held" in printed

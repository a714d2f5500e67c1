"""Test arms in a real run: sweeps, accumulation, rounding, own environments."""

import os
import subprocess
import sys

import pytest

from compare.analysis.summary import summarise
from compare.schema.arms import parse_arm
from compare.schema.store import read_run

LAUNCHED_DIFFERENTLY = ("manual:mode=overlap", "horovod", "horovod:controller=mpi", "mpi")
ARMS = "ddp:comm_hook={none,fp16},{" + ",".join(LAUNCHED_DIFFERENTLY) + "}:env.MALLOC_ARENA_MAX=3"
OWN_ENVIRONMENT = [f"{arm}:env.MALLOC_ARENA_MAX=3" for arm in LAUNCHED_DIFFERENTLY]


@pytest.fixture(scope="module")
def ran(tmp_path_factory, mnist_dir, every_backend):
    """Run arms written as sweeps: two ranks, two passes a step."""
    folder = tmp_path_factory.mktemp("arms") / "run"
    command = [
        *(sys.executable, "-m", "compare", "run", "--max-reruns", "0"),
        *("--backend", ARMS, "--no-control", "-np", "2", "--accumulate", "2"),
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


def test_sweep_of_arms_launches_each_of_them(ran):
    labels = ["ddp:comm_hook=none", "ddp:comm_hook=fp16", *OWN_ENVIRONMENT]
    assert [arm.label for arm in ran[0].config.arms] == labels
    assert {launch.arm for launch in ran[0].launches} == set(labels)


def test_accumulate_counts_the_samples_of_all_passes_in_a_step(ran):
    run, printed = ran
    assert "batch 32 per rank × 2 passes" in printed
    assert run.config.global_batch_size == 128
    for arm in summarise(run).arms:
        assert arm.samples_per_second.mean == pytest.approx(128 / arm.step_seconds.mean)


def test_accumulate_trains_one_model_except_in_arms_that_round(ran):
    hashes = {arm.arm: arm.final_hash for arm in summarise(ran[0]).arms}
    exact = {value for label, value in hashes.items() if parse_arm(label).exact}
    assert len(exact) == 1
    assert hashes["ddp:comm_hook=fp16"] not in exact


@pytest.mark.parametrize("label", OWN_ENVIRONMENT)
def test_arm_environment_reaches_its_ranks_under_every_launcher(ran, label):
    (launch,) = ran[0].of(parse_arm(label))
    assert launch.environment["MALLOC_ARENA_MAX"] == "3"
    for rank in launch.ranks:
        assert rank.attestation["malloc"]["MALLOC_ARENA_MAX"] == "3"


def test_arm_environment_reaches_no_other_arm(ran):
    for launch in ran[0].launches:
        if launch.arm not in OWN_ENVIRONMENT:
            assert "MALLOC_ARENA_MAX" not in launch.environment
            assert "MALLOC_ARENA_MAX" not in launch.ranks[0].attestation["malloc"]

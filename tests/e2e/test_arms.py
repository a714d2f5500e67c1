"""What the grammar of arms promises, in a run: sweeps, accumulation, rounding, environments of their own."""

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
    """Two passes a step, on two ranks, through arms that were written as sweeps."""
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


def test_every_arm_of_a_sweep_is_launched(ran):
    labels = ["ddp:comm_hook=none", "ddp:comm_hook=fp16", *OWN_ENVIRONMENT]
    assert [arm.label for arm in ran[0].config.arms] == labels
    assert {launch.arm for launch in ran[0].launches} == set(labels)


def test_a_step_is_as_large_as_all_its_passes(ran):
    run, said = ran
    assert "batch 32 per rank × 2 passes" in said
    assert run.config.global_batch_size == 128
    for arm in summarise(run).arms:
        assert arm.samples_per_second.mean == pytest.approx(128 / arm.step_seconds.mean)


def test_with_two_passes_a_step_exact_arms_still_train_one_model_and_rounding_ones_another(ran):
    hashes = {arm.arm: arm.final_hash for arm in summarise(ran[0]).arms}
    exact = {value for label, value in hashes.items() if parse_arm(label).exact}
    assert len(exact) == 1
    assert hashes["ddp:comm_hook=fp16"] not in exact


@pytest.mark.parametrize("label", OWN_ENVIRONMENT)
def test_what_an_arm_sets_reaches_its_ranks_through_every_launcher(ran, label):
    (launch,) = ran[0].of(parse_arm(label))
    assert launch.environment["MALLOC_ARENA_MAX"] == "3"
    for rank in launch.ranks:
        assert rank.attestation["malloc"]["MALLOC_ARENA_MAX"] == "3"


def test_what_an_arm_sets_reaches_no_other(ran):
    for launch in ran[0].launches:
        if launch.arm not in OWN_ENVIRONMENT:
            assert "MALLOC_ARENA_MAX" not in launch.environment
            assert "MALLOC_ARENA_MAX" not in launch.ranks[0].attestation["malloc"]

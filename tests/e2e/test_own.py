"""A workload of the user's own, through real launchers."""

from __future__ import annotations

import json
import re

import pytest

from compare.analysis.parity import check_gates
from compare.schema.arms import parse_arm
from compare.schema.store import read_run
from tests.comparing import ROOT, RUN, compare

EXAMPLES = ROOT / "examples"
ARMS = "ddp,manual,horovod,mpi"


@pytest.mark.parametrize(
    ("example", "ranks", "arms"),
    [
        pytest.param("transformer", 2, "horovod,fsdp", marks=pytest.mark.faults),
        pytest.param("mixed", 2, "mpi", marks=pytest.mark.faults),
        pytest.param("mixed", 2, "manual,manual:mode=ring", marks=[pytest.mark.faults, pytest.mark.rest]),
        pytest.param(
            "transformer", 3, f"{ARMS},zero,fsdp,single", marks=[pytest.mark.faults, pytest.mark.rest]
        ),
        pytest.param("resnet", 2, "pipeline", marks=pytest.mark.faults),
        pytest.param("resnet", 2, "modelparallel,localsgd", marks=[pytest.mark.faults, pytest.mark.rest]),
        pytest.param("resnet", 3, "pipeline", marks=[pytest.mark.faults, pytest.mark.rest]),
        pytest.param("resnet", 3, f"{ARMS},zero,fsdp", marks=[pytest.mark.faults, pytest.mark.rest]),
    ],
)
def test_examples_are_proven_through_every_backend(tmp_path, requires_backend, example, ranks, arms):
    requires_backend("horovod")
    requires_backend("mpi")
    done = compare(
        *("verify", "--workload", EXAMPLES / f"{example}.py:make", "--backend", arms, "-np", ranks),
        *("--output", tmp_path / "run", "--export", tmp_path / "out.json"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())["arms"]
    assert [arm["arm"] for arm in found] == arms.split(",")
    for arm in found:
        gates = {gate["name"]: gate for gate in arm["gates"]}
        assert gates["float64"]["outcome"] == "passed"
        in_shards = arm["arm"] in {"fsdp", "pipeline", "modelparallel"}
        assert gates["ranks"]["outcome"] == ("exempt" if in_shards else "passed")


@pytest.mark.faults
def test_a_model_that_is_no_chain_is_refused_before_it_trains(tmp_path):
    done = compare(
        *(*RUN, "--workload", EXAMPLES / "transformer.py:make", "--backend", "pipeline", "--no-control"),
        *("--steps", "20:warmup=5", "--repeats", 1, "--output", tmp_path / "results"),
    )
    assert done.returncode == 6
    text = " ".join(done.stderr.split())
    assert "the model is a Transformer, but ranks can divide only an nn.Sequential" in text
    assert "Make it one, or leave this arm out." in text


@pytest.mark.faults
@pytest.mark.parametrize(
    ("factory", "arm", "status", "words"),
    [
        pytest.param("horovod", "own_horovod", 0, "", marks=pytest.mark.rest),
        pytest.param("ddp", "own_torch", 0, "", marks=pytest.mark.rest),
        ("hasty", "own_torch", 8, "2 times the right one: a sum in place of the mean"),
    ],
)
def test_tutorial_of_the_migration_shows(tmp_path, requires_backend, factory, arm, status, words):
    requires_backend("horovod")
    done = compare(
        *("verify", "--workload", EXAMPLES / f"horovod_to_ddp.py:{factory}", "--backend", arm),
        *("--output", tmp_path / "run"),
    )
    assert done.returncode == status, done.stderr
    assert words in " ".join((done.stdout + done.stderr).split())


def test_the_example_of_the_docs_runs_and_is_named(tmp_path):
    text = (ROOT / "docs" / "own-model.md").read_text()
    (code,) = re.findall(r"```python\n(# train\.py\n.*?)```", text, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 21
    (tmp_path / "train.py").write_text(code)
    done = compare(
        *(*RUN, "--workload", tmp_path / "train.py:make", "--backend", "ddp", "--no-control"),
        *("--steps", "20:warmup=5", "--repeats", 1, "--output", tmp_path / "results"),
    )
    assert done.returncode == 0, done.stderr
    shown = compare("report", tmp_path / "results", "--detail").stdout
    # A noisy run states that before its headline.
    assert any(line.startswith("train.py:make · 2 ranks") for line in shown.splitlines())
    assert "test loss" in shown
    run = read_run(tmp_path / "results")
    assert run.dataset.workload == "train.py:make"
    (launch,) = run.launches
    assert [rank.evaluation.correct for rank in launch.ranks] == [None, None]
    assert sum(rank.evaluation.samples for rank in launch.ranks) == 1000


@pytest.mark.faults
def test_parameters_outside_the_loss_are_named_before_the_training(tmp_path):
    """The corpus of tests/proof has such a model, with and without find_unused_parameters."""
    right = (EXAMPLES / "mixed.py").read_text()
    extra = "self.extra = nn.Linear(3, 3)\n        self.answer"
    (tmp_path / "unused.py").write_text(right.replace("self.answer", extra, 1))
    done = compare(
        *("verify", "--workload", tmp_path / "unused.py:make", "--backend", "ddp"),
        *("--output", tmp_path / "results", "--export", tmp_path / "out.json"),
    )
    assert done.returncode == 6, done.stderr
    (found,) = json.loads((tmp_path / "out.json").read_text())["arms"]
    words = "these parameters take no part in the loss on any rank: extra.weight, extra.bias"
    assert words in found["failure"]["message"]


def test_an_error_in_the_users_file_has_its_line(tmp_path, requires_backend):
    requires_backend("mpi")
    right = (EXAMPLES / "resnet.py").read_text()
    (tmp_path / "wrong.py").write_text(right.replace("images, labels = batch", "images, labels, _ = batch"))
    done = compare(
        *(*RUN, "--workload", tmp_path / "wrong.py:make", "--backend", "mpi", "--no-control"),
        *("--steps", "20:warmup=5", "--repeats", 1, "--output", tmp_path / "results"),
    )
    assert done.returncode == 6
    assert "ValueError: not enough values to unpack (expected 3, got 2)" in done.stderr
    assert re.search(r"wrong\.py:\d+\)", done.stderr)
    assert "Traceback" not in done.stderr


PLANTED = ROOT / "tests" / "e2e" / "planted.py"
CAUSES = {
    "unsharded": "Ranks 0 and 1 begin with the same batch. Use torch's DistributedSampler",
    "skips": "wrong from step 4: 2.bias is off by 3.5e-02. The gradient of rank 1 is missing",
}
"""One for each gate that may find it; tests/proof has all the others."""


def verify_planted(tmp_path, name, arm):
    done = compare(
        *("verify", "--workload", f"{PLANTED}:{name}", "--backend", arm, "--batch-size", 8),
        *("--output", tmp_path / "run", "--export", tmp_path / "out.json"),
    )
    (found,) = json.loads((tmp_path / "out.json").read_text())["arms"]
    return done, {gate["name"]: gate for gate in found["gates"]}


PROVEN_IN_A_RUN = dict.fromkeys(("samples", "float64", "end", "ranks"), "passed")
VERIFIED = PROVEN_IN_A_RUN | {"float32": "passed"}


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "arm"),
    [
        pytest.param("right", "own_torch", marks=pytest.mark.rest),
        pytest.param("right", "ddp", marks=pytest.mark.rest),
        ("horovod", "own_horovod"),
        pytest.param("mpi", "own_mpi", marks=pytest.mark.rest),
    ],
)
def test_own_right_step_is_verified(tmp_path, requires_backend, name, arm):
    requires_backend("mpi")
    requires_backend("horovod")
    done, gates = verify_planted(tmp_path, name, arm)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {name: gate["outcome"] for name, gate in gates.items()} == VERIFIED


@pytest.mark.faults
@pytest.mark.parametrize("name", CAUSES)
def test_own_wrong_step_is_found_with_its_cause(tmp_path, name):
    done, gates = verify_planted(tmp_path, name, "own_torch")
    assert done.returncode == 8, done.stdout + done.stderr
    failed = gates["samples" if name == "unsharded" else "float64"]
    assert failed["outcome"] == "failed"
    assert CAUSES[name] in failed["found"]
    assert CAUSES[name].split(".")[0] in " ".join(done.stdout.split())


@pytest.fixture(scope="module")
def beside_mpi(tmp_path_factory, requires_backend):
    """Run a right step of the user's own beside our arm; mpirun loads no torch, so it starts soonest."""
    requires_backend("mpi")
    folder = tmp_path_factory.mktemp("beside") / "results"
    done = compare(
        *("run", "--workload", f"{PLANTED}:mpi", "--backend", "own_mpi,mpi", "--no-control"),
        *("--batch-size", 8, "--steps", "40:warmup=5", "--repeats", 1, "--interleave", "auto:reruns=0"),
        *("--output", folder),
    )
    assert done.returncode == 0, done.stderr
    return {launch.arm: launch for launch in read_run(folder).launches}


def test_own_right_step_is_proven(beside_mpi):
    gates = check_gates(parse_arm("own_mpi"), beside_mpi["own_mpi"].ranks)
    assert {gate.name: gate.outcome for gate in gates} == PROVEN_IN_A_RUN


def test_own_step_is_timed_beside_other_arms(beside_mpi):
    own, ours = beside_mpi["own_mpi"], beside_mpi["mpi"]
    assert own.ranks[0].attestation["replica"]["reduce_op"] == "the user's own"
    assert own.ranks[0].final_hash == ours.ranks[0].final_hash


def test_own_arm_without_a_step_is_a_usage_error(tmp_path):
    done = compare("verify", "--backend", "own_torch", "--output", tmp_path / "run")
    assert done.returncode == 2
    assert "Name your file: --workload train.py:make" in done.stderr


def test_skeleton_of_a_workload_runs_at_once(tmp_path, requires_backend):
    requires_backend("mpi")
    file = tmp_path / "train.py"
    written = compare("setup", "workload", file)
    assert written.returncode == 0, written.stderr
    assert f"ringside run --workload {file}:make" in written.stdout
    done = compare(
        *(*RUN, "--workload", f"{file}:make", "--backend", "mpi", "--no-control", "-np", 2),
        *("--device", "cpu", "--steps", 40, "--repeats", 1, "--output", tmp_path / "results"),
    )
    assert done.returncode == 0, done.stderr
    assert "train.py:make" in done.stdout

"""A workload of the user's own, through real launchers."""

from __future__ import annotations

import json
import re

import pytest

from compare.schema.store import read_run
from tests.comparing import ROOT, compare

EXAMPLES = ROOT / "examples"
ARMS = "ddp,manual,horovod,mpi"


@pytest.mark.parametrize(
    ("example", "ranks", "arms"),
    [
        ("transformer", 2, "horovod,fsdp"),
        pytest.param("transformer", 2, "ddp,manual,mpi,zero,single", marks=pytest.mark.faults),
        pytest.param("resnet", 2, ARMS, marks=pytest.mark.faults),
        pytest.param("mixed", 2, f"{ARMS},manual:mode=overlap,manual:mode=ring", marks=pytest.mark.faults),
        pytest.param("transformer", 3, f"{ARMS},zero,fsdp", marks=[pytest.mark.faults, pytest.mark.rest]),
        pytest.param("resnet", 2, "pipeline,modelparallel,localsgd", marks=pytest.mark.faults),
        pytest.param("resnet", 3, "pipeline", marks=[pytest.mark.faults, pytest.mark.rest]),
        pytest.param("resnet", 3, f"{ARMS},zero,fsdp", marks=[pytest.mark.faults, pytest.mark.rest]),
    ],
)
def test_examples_are_proven_through_every_backend(tmp_path, requires_backend, example, ranks, arms):
    requires_backend("horovod")
    requires_backend("mpi")
    done = compare(
        *("verify", "--workload", EXAMPLES / f"{example}.py:make", "--backend", arms, "-np", ranks),
        *("--output", tmp_path / "run", "--export-json", tmp_path / "out.json"),
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
        *("run", "--workload", EXAMPLES / "transformer.py:make", "--backend", "pipeline", "--no-control"),
        *("--steps", 20, "--warmup", 5, "--repeats", 1, "--output", tmp_path / "results"),
    )
    assert done.returncode == 6
    text = " ".join(done.stderr.split())
    assert "the model is a Transformer, and no chain of layers that ranks could divide" in text
    assert "an nn.Sequential, or leave this arm out" in text


def test_the_readmes_example_runs_and_is_named(tmp_path):
    text = (ROOT / "README.md").read_text()
    (code,) = re.findall(r"```python\n(# train\.py\n.*?)```", text, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 21
    (tmp_path / "train.py").write_text(code)
    done = compare(
        *("run", "--workload", tmp_path / "train.py:make", "--backend", "ddp", "--no-control"),
        *("--steps", 20, "--warmup", 5, "--repeats", 1, "--output", tmp_path / "results"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("train.py:make · 2 ranks")
    assert "test loss" in done.stdout
    run = read_run(tmp_path / "results")
    assert run.dataset.workload == "train.py:make"
    (launch,) = run.launches
    assert [rank.evaluation.correct for rank in launch.ranks] == [None, None]
    assert sum(rank.evaluation.samples for rank in launch.ranks) == 1000


def test_parameters_outside_the_loss_are_named_before_the_training(tmp_path):
    right = (EXAMPLES / "mixed.py").read_text()
    extra = "self.extra = nn.Linear(3, 3)\n        self.answer"
    (tmp_path / "unused.py").write_text(right.replace("self.answer", extra, 1))
    arms = "ddp,ddp:find_unused_parameters=true"
    done = compare(
        *("verify", "--workload", tmp_path / "unused.py:make", "--backend", arms),
        *("--output", tmp_path / "results", "--export-json", tmp_path / "out.json"),
    )
    assert done.returncode == 6, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())["arms"]
    failures = {arm["arm"]: arm["failure"] for arm in found}
    words = "these parameters take no part in the loss on any rank: extra.weight, extra.bias"
    assert words in failures["ddp"]["message"]
    assert failures["ddp:find_unused_parameters=true"] is None


def test_an_error_in_the_users_file_has_its_line(tmp_path):
    right = (EXAMPLES / "resnet.py").read_text()
    (tmp_path / "wrong.py").write_text(right.replace("images, labels = batch", "images, labels, _ = batch"))
    done = compare(
        *("run", "--workload", tmp_path / "wrong.py:make", "--backend", "ddp", "--no-control"),
        *("--steps", 20, "--warmup", 5, "--repeats", 1, "--output", tmp_path / "results"),
    )
    assert done.returncode == 6
    assert "ValueError: not enough values to unpack (expected 3, got 2)" in done.stderr
    assert re.search(r"wrong\.py:\d+\)", done.stderr)
    assert "Traceback" not in done.stderr

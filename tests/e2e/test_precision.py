"""Precision and compilation of a real run, read back from its ranks."""

from __future__ import annotations

import shutil

import pytest

from compare.analysis import analyse
from compare.schema.store import read_run
from tests.comparing import RUN, compare


def a_run(tmp_path, mnist_dir, *flags):
    done = compare(
        *(*RUN, "--no-control", "-np", 2, *flags, "--model", "mlp:784-16-10", "--steps", "20:warmup=5"),
        *("--repeats", 1, "--data", mnist_dir, "--output", tmp_path / "run"),
    )
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "run")
    assert analyse(run).unexplained_differences == []
    return compare("report", tmp_path / "run", "--detail").stdout, [
        rank.attestation for launch in run.launches for rank in launch.ranks
    ]


def test_autocast_is_active_in_every_rank(tmp_path, mnist_dir):
    printed, attested = a_run(tmp_path, mnist_dir, "--backend", "fsdp", "--precision", "bf16-autocast")
    assert "· bf16-autocast ·" in printed
    assert len(attested) == 2
    assert {tuple(one["activation_dtypes"]) for one in attested} == {("torch.bfloat16", "torch.float32")}
    assert {tuple(one["parameter_dtypes"]) for one in attested} == {("torch.float32",)}


@pytest.mark.faults
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on PATH")
def test_compiled_model_is_proven(tmp_path, mnist_dir):
    printed, attested = a_run(tmp_path, mnist_dir, "--backend", "ddp", "--compile")
    assert "· compiled ·" in printed
    assert "✓ ddp trained what one process trains: proven for 20 steps" in printed
    assert [(one["compiled_graphs"], one["graph_breaks"]) for one in attested] == [(1, 0), (1, 0)]

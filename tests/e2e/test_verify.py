"""Test parity end to end: wrong strategies fail, right ones pass."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.comparing import ROOT, RUN, compare

BROKEN = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent / "broken"), str(ROOT)])}

SUMS, SKIPS = "manual:mode=flat", "manual:mode=per_parameter"
WRONG = {
    SUMS: "2 times the right one: a sum in place of the mean",
    SKIPS: "Rank 1 is wrong from step 1",
    "fsdp": "A shard is not updated, or samples are left out.",
}
"""The wrong arms, and what is found; tests/proof has all other faults."""


def gates_of(file):
    arms = json.loads(file.read_text())["arms"]
    return {arm["arm"]: {gate["name"]: gate for gate in arm["gates"]} for arm in arms}


@pytest.fixture(scope="module")
def broken(tmp_path_factory, mnist_dir):
    """Verify one right strategy and three wrong ones on two ranks."""
    folder = tmp_path_factory.mktemp("broken")
    done = compare(
        *("verify", "--backend", ",".join([*WRONG, "ddp"])),
        *("-np", 2),
        *("--data", mnist_dir, "--output", folder / "run", "--export", folder / "out.json"),
        environment=BROKEN,
    )
    assert done.returncode == 8, done.stdout + done.stderr
    gates = gates_of(folder / "out.json")
    assert list(gates) == [*WRONG, "ddp"], "all were tried"
    return done.stdout, gates


@pytest.mark.faults
@pytest.mark.parametrize("arm", WRONG)
def test_verify_wrong_strategy_fails_by_far_and_is_diagnosed(broken, arm):
    printed, gates = broken
    for name in ("float64", "float32"):
        gate = gates[arm][name]
        assert gate["outcome"] == "failed"
        assert gate["figure"] > 100 * gate["limit"]
    assert f"{arm} does not train what a single process trains" in printed
    assert WRONG[arm] in gates[arm]["float64"]["found"]
    assert (gates[arm]["ranks"]["outcome"] == "failed") is (arm == SKIPS)


@pytest.mark.faults
def test_verify_right_strategy_beside_wrong_ones_passes(broken):
    printed, gates = broken
    assert {gate["outcome"] for gate in gates["ddp"].values()} == {"passed"}
    assert "the same training" in next(line for line in printed.splitlines() if line.startswith(" ddp "))


def test_run_stops_at_a_wrong_strategy(tmp_path, mnist_dir):
    done = compare(
        *RUN,
        *("--backend", SUMS, "--no-control", "--steps", "10:warmup=1", "--repeats", 1),
        *("--data", mnist_dir, "--output", tmp_path / "run"),
        environment=BROKEN,
    )
    assert done.returncode == 8, done.stderr
    assert f"{SUMS} does not train what a single process trains" in done.stderr
    assert "2 times the right one: a sum in place of the mean" in done.stderr


@pytest.mark.faults
@pytest.mark.parametrize(
    ("arm", "ranks", "code", "outcome"), [("ddp", 1, 16, "nothing"), ("mpi", 3, 0, "passed")]
)
def test_verify_several_ranks_are_proven_and_one_proves_nothing(
    tmp_path, mnist_dir, requires_backend, arm, ranks, code, outcome
):
    requires_backend("mpi")
    done = compare(
        *("verify", "--backend", arm, "-np", ranks, "--data", mnist_dir),
        *("--output", tmp_path / "run"),
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Hosts: this machine" in done.stderr
    for gates in gates_of(tmp_path / "run" / "verification.json").values():
        assert {name: gate["outcome"] for name, gate in gates.items()} == {
            "ranks": "passed",
            "float64": outcome,
            "float32": outcome,
            "end": "passed",
        }

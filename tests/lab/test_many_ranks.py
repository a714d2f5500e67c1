"""Sixteen real ranks over four rehearsed hosts, which two cores cannot train fast, but prove."""

import json

import pytest

from tests.comparing import compare

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

RANKS, HOSTS = 16, 4


def test_sixteen_ranks_of_every_default_arm_are_proven(tmp_path, mnist_dir, requires_lab):
    result = tmp_path / "proofs.json"
    done = compare(
        *(
            "verify",
            "--engine",
            f"rehearsal:hosts={HOSTS},slots={RANKS // HOSTS}",
            "--num-proc",
            RANKS,
            "--data",
            mnist_dir,
        ),
        *("--model", "mlp:784-32-10", "--timeout", "15m:stall=300", "--export", result),
        timeout=3500,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    arms = json.loads(result.read_text())["arms"]
    assert len(arms) >= 4
    for arm in arms:
        assert [gate["outcome"] for gate in arm["gates"]].count("failed") == 0, arm
        assert any(gate["outcome"] == "passed" for gate in arm["gates"]), arm

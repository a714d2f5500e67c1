"""Test which launches fail parity, and which ranks an error names."""

from __future__ import annotations

import pytest

from compare.analysis.parity import LIMITS, check_gates, check_launch
from compare.errors import ParityError
from compare.schema.arms import Arm
from tests.unit.factories import INITIAL, TRAINED, a_pass, a_rank

OTHER = "5" * 64
DDP, CONTROL = Arm("ddp", {"bucket_cap_mb": 1.0}), Arm("none")


def ranks(*hashes):
    return [
        a_rank(rank, host=f"host{rank}", initial_hash=initial, final_hash=final)
        for rank, (initial, final) in enumerate(hashes)
    ]


def refusal(arm, *hashes):
    with pytest.raises(ParityError) as caught:
        check_launch(arm, ranks(*hashes))
    assert caught.value.exit_code == 8
    assert arm.label in caught.value.what
    assert caught.value.found
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("arm", [DDP, CONTROL], ids=lambda arm: arm.label)
def test_ranks_with_one_model_pass(arm, world_size):
    check_launch(arm, ranks(*[(INITIAL, TRAINED)] * world_size))
    check_launch(CONTROL, ranks((INITIAL, TRAINED), (INITIAL, OTHER)))


def test_ranks_with_different_models_at_the_end_fail():
    error = refusal(DDP, (INITIAL, TRAINED), (INITIAL, TRAINED), (INITIAL, OTHER))
    assert "different models" in error.what
    assert f"rank 2 {OTHER[:12]}" in error.found
    assert f"rank 0 {TRAINED[:12]}" in error.found


@pytest.mark.parametrize("arm", [DDP, CONTROL], ids=lambda arm: arm.label)
def test_ranks_with_different_models_at_the_start_fail_in_any_arm(arm):
    error = refusal(arm, (INITIAL, TRAINED), (OTHER, TRAINED))
    assert "start" in error.what
    assert f"rank 1 {OTHER[:12]}" in error.found


@pytest.mark.parametrize("arm", [DDP, CONTROL], ids=lambda arm: arm.label)
def test_ranks_without_training_fail_and_are_named(arm):
    error = refusal(arm, (INITIAL, TRAINED), (INITIAL, INITIAL))
    assert "rank 1 on host1 never trained" in error.what
    assert "never trained" in refusal(DDP, (INITIAL, INITIAL), (INITIAL, INITIAL)).what


# ---- beside a single process ----


def passes(*ranks):
    """Return ranks with passes: first and last difference, share, hash."""
    found = []
    for rank, (first, last, share, hash_) in enumerate(ranks):
        differences = [first] if rank else [first, last]
        taken = a_pass(hash=hash_, share_of_first_update=share, differences=differences)
        found.append(a_rank(rank, host=f"host{rank}", parity=[taken]))
    return found


def failed(ranks):
    with pytest.raises(ParityError) as caught:
        check_launch(DDP, ranks)
    assert DDP.label in caught.value.what
    return caught.value.found


def test_pass_within_the_limit_passes():
    limit = LIMITS["float64"]
    check_launch(DDP, passes((limit, limit, 1.0, TRAINED), (limit, None, 1.0, TRAINED)))


def test_pass_beyond_the_limit_fails_with_its_figure():
    found = failed(passes((1e-13, 2e-12, 1.0, TRAINED), (1e-13, None, 1.0, TRAINED)))
    assert "2.0e-12" in found
    assert "Allowed: 1e-12." in found
    assert "no number" in failed(passes((1e-3, None, None, TRAINED), (1e-3, None, None, TRAINED)))
    failed(passes((1e-16, 1e-16, 1.0, TRAINED), (1e-16, None, 1.0, OTHER)))
    assert "times the right one" not in failed(passes((1e-2, 0.1, 1.0, TRAINED)))


@pytest.mark.parametrize(
    ("meaning", "ranks"),
    [
        ("3 times the right one: a sum in place of the mean", [(1e-2, 0.1, 3.0, TRAINED)] * 3),
        ("the right one divided by 2: the mean is divided twice", [(1e-2, 0.1, 0.5, TRAINED)] * 2),
        ("No rank's parameters change: the step does not reach them", [(1e-2, 0.1, 0.0, TRAINED)] * 2),
        ("left over from the step before", [(1e-16, 0.1, 1.0, TRAINED)] * 2),
        ("Check that their shards are the parts of every global batch.", [(1e-2, 0.1, 0.7, TRAINED)] * 2),
        (
            "The first update is wrong on rank 1 (by 3.0e-02), and right on the others",
            [(1e-16, 0.1, 1.0, TRAINED), (3e-2, None, 0.9, OTHER)],
        ),
        (
            "wrong on rank 0 (by 1.0e-02), rank 1 (by no number): gradients are not averaged",
            [(1e-2, 0.1, 0.7, TRAINED), (None, None, None, OTHER)],
        ),
    ],
)
def test_pass_failure_is_diagnosed(meaning, ranks):
    assert meaning in failed(passes(*ranks))


@pytest.mark.parametrize(("error", "outcome"), [(3e-4, "exempt"), (0.06, "failed"), (None, "failed")])
def test_lossy_arm_with_a_wrong_first_update_fails(error, outcome):
    """The share may be right by chance, on other ranks' samples."""
    taken = a_pass(share_of_first_update=1.0, error_of_first_update=error, differences=[1e-4, 1e-3])
    gates = check_gates(
        Arm("ddp", {"comm_hook": "fp16"}), [a_rank(0, parity=[taken]), a_rank(1, parity=[taken])]
    )
    (gate,) = (gate for gate in gates if gate.name == "float64")
    assert gate.outcome == outcome
    assert ("Allowed: 0.05 of the first update" in gate.found) == (outcome == "failed")


@pytest.mark.parametrize("kind", ["float64", "float32"])
@pytest.mark.parametrize(
    ("error", "outcome", "found"),
    [
        (0.7, "exempt", ""),
        (1.2, "failed", "1.2 times the size of that update"),
        (None, "failed", "no number"),
    ],
)
def test_lossy_arm_as_far_as_untrained_fails(error, outcome, found, kind):
    """PowerSGD is 0.7 away, and 1.2 without a reset of gradients."""
    both = [a_pass(kind=k, error_of_whole_update=error if k == kind else 0.1) for k in ("float64", "float32")]
    gates = check_gates(Arm("ddp", {"comm_hook": "powersgd"}), [a_rank(0, parity=both)], "whole")
    (gate,) = (gate for gate in gates if gate.name == kind)
    assert (gate.outcome, gate.figure) == (outcome, 2e-16)
    assert found in gate.found
    assert ("Allowed: 1, the difference without any training" in gate.found) == (outcome == "failed")
    assert [g.outcome for g in gates if g.name not in (kind, "ranks")] == ["exempt"]


def test_lossy_arm_has_a_whole_update_on_rank_0_alone():
    others = a_rank(1, parity=[a_pass(differences=[1e-4], error_of_whole_update=None)])
    gates = check_gates(Arm("ddp", {"comm_hook": "fp16"}), [a_rank(0), others])
    assert [gate.outcome for gate in gates] == ["exempt", "passed"]


def test_pass_missing_on_a_rank_fails():
    with pytest.raises(ParityError, match="rank 1 on host1 has no float64 pass"):
        check_launch(DDP, [a_rank(0), a_rank(1, host="host1", parity=[])])


def test_control_is_exempt_from_every_gate():
    gates = check_gates(CONTROL, [a_rank(0, parity=[]), a_rank(1, parity=[])], "whole")
    assert [(gate.name, gate.outcome) for gate in gates] == [
        ("float64", "exempt"),
        ("float32", "exempt"),
        ("ranks", "exempt"),
    ]


def test_gates_of_a_verification_hold_float32_and_no_curve():
    three = [a_pass(), a_pass(kind="float32", differences=[9e-7]), a_pass(kind="as run", differences=[0.5])]
    gates = check_gates(DDP, [a_rank(parity=three)], "whole")
    assert [(gate.name, gate.outcome, gate.figure, gate.limit) for gate in gates] == [
        ("float64", "passed", 2e-16, 1e-12),
        ("float32", "passed", 9e-7, 1e-6),
        ("ranks", "passed", None, None),
    ]
    three[1] = a_pass(kind="float32", differences=[1.1e-6])
    assert [gate.outcome for gate in check_gates(DDP, [a_rank(parity=three)], "whole")] == [
        "passed",
        "failed",
        "passed",
    ]

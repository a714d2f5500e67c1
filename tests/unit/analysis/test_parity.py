"""Parity: which launches are no comparison, and which ranks are to blame."""

from __future__ import annotations

import pytest

from compare.analysis.parity import LIMITS, check_launch, judge
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
def test_ranks_that_trained_one_model_pass(arm, world_size):
    check_launch(arm, ranks(*[(INITIAL, TRAINED)] * world_size))


def test_the_ranks_of_the_control_train_apart():
    check_launch(CONTROL, ranks((INITIAL, TRAINED), (INITIAL, OTHER)))


def test_ranks_that_ended_apart_are_refused():
    error = refusal(DDP, (INITIAL, TRAINED), (INITIAL, TRAINED), (INITIAL, OTHER))
    assert "different models" in error.what
    assert f"rank 2 {OTHER[:12]}" in error.found
    assert f"rank 0 {TRAINED[:12]}" in error.found


@pytest.mark.parametrize("arm", [DDP, CONTROL], ids=lambda arm: arm.label)
def test_ranks_that_started_apart_are_refused_even_in_the_control(arm):
    error = refusal(arm, (INITIAL, TRAINED), (OTHER, TRAINED))
    assert "start" in error.what
    assert f"rank 1 {OTHER[:12]}" in error.found


@pytest.mark.parametrize("arm", [DDP, CONTROL], ids=lambda arm: arm.label)
def test_a_rank_that_never_trained_is_refused_by_its_name(arm):
    error = refusal(arm, (INITIAL, TRAINED), (INITIAL, INITIAL))
    assert "rank 1 on host1 never trained" in error.what


def test_ranks_that_all_stood_still_are_refused_although_they_agree():
    assert "never trained" in refusal(DDP, (INITIAL, INITIAL), (INITIAL, INITIAL)).what


# ---- beside a single process ----


def passes(*ranks):
    """Ranks whose passes were so: (first difference, last difference of rank 0 or None, share, hash)."""
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


def test_a_launch_beside_a_single_process_passes_up_to_the_limit():
    limit = LIMITS["float64"]
    check_launch(DDP, passes((limit, limit, 1.0, TRAINED), (limit, None, 1.0, TRAINED)))


def test_beyond_the_limit_it_is_refused_with_the_figure():
    found = failed(passes((1e-13, 2e-12, 1.0, TRAINED), (1e-13, None, 1.0, TRAINED)))
    assert "2.0e-12" in found
    assert "1e-12 is allowed" in found


def test_what_is_no_number_is_refused():
    assert "no number" in failed(passes((1e-3, None, None, TRAINED), (1e-3, None, None, TRAINED)))


def test_a_rank_with_other_parameters_is_refused_although_rank_0_is_right():
    failed(passes((1e-16, 1e-16, 1.0, TRAINED), (1e-16, None, 1.0, OTHER)))


@pytest.mark.parametrize(
    ("meaning", "ranks"),
    [
        ("3 times the right one: a sum", [(1e-2, 0.1, 3.0, TRAINED)] * 3),
        ("the right one divided by 2: the mean is divided twice", [(1e-2, 0.1, 0.5, TRAINED)] * 2),
        ("the step does not reach the parameters", [(1e-2, 0.1, 0.0, TRAINED)] * 2),
        ("left over from the step before", [(1e-16, 0.1, 1.0, TRAINED)] * 2),
        ("are their shards the parts of every global batch?", [(1e-2, 0.1, 0.7, TRAINED)] * 2),
        (
            "The first update is wrong on rank 1 (by 3.0e-02); that of the others is right",
            [(1e-16, 0.1, 1.0, TRAINED), (3e-2, None, 0.9, OTHER)],
        ),
        (
            "wrong on rank 0 (by 1.0e-02), rank 1 (by no number): gradients are not averaged",
            [(1e-2, 0.1, 0.7, TRAINED), (None, None, None, OTHER)],
        ),
    ],
)
def test_what_a_failed_pass_looks_like_is_told(meaning, ranks):
    assert meaning in failed(passes(*ranks))


@pytest.mark.parametrize(("error", "outcome"), [(3e-4, "exempt"), (0.06, "failed"), (None, "failed")])
def test_an_arm_that_rounds_may_round_its_first_update_and_no_more(error, outcome):
    """Its share of the right update may be right by chance, on samples that are not its own."""
    taken = a_pass(share_of_first_update=1.0, error_of_first_update=error, differences=[1e-4, 1e-3])
    gates = judge(Arm("ddp", {"comm_hook": "fp16"}), [a_rank(0, parity=[taken]), a_rank(1, parity=[taken])])
    (gate,) = (gate for gate in gates if gate.name == "float64")
    assert gate.outcome == outcome
    said = "0.05 of the first update's size is what rounding is allowed" in gate.found
    assert said == (outcome == "failed")


@pytest.mark.parametrize("kind", ["float64", "float32"])
@pytest.mark.parametrize(
    ("error", "outcome", "said"),
    [
        (0.7, "exempt", ""),
        (1.2, "failed", "is 1.2 times its size away"),
        (None, "failed", "is no number away"),
    ],
)
def test_an_arm_that_rounds_may_not_end_where_no_training_would(error, outcome, said, kind):
    """PowerSGD is 0.7 away by its own choice, and 1.2 with gradients that are never set to nought."""
    both = [a_pass(kind=k, error_of_whole_update=error if k == kind else 0.1) for k in ("float64", "float32")]
    gates = judge(Arm("ddp", {"comm_hook": "powersgd"}), [a_rank(0, parity=both)], "whole")
    (gate,) = (gate for gate in gates if gate.name == kind)
    assert (gate.outcome, gate.figure) == (outcome, 2e-16)
    assert said in gate.found
    assert ("1 is allowed" in gate.found) == (outcome == "failed")
    assert [g.outcome for g in gates if g.name not in (kind, "ranks")] == ["exempt"]


def test_only_rank_0_says_where_all_steps_together_have_led():
    others = a_rank(1, parity=[a_pass(differences=[1e-4], error_of_whole_update=None)])
    gates = judge(Arm("ddp", {"comm_hook": "fp16"}), [a_rank(0), others])
    assert [gate.outcome for gate in gates] == ["exempt", "passed"]


def test_one_rank_alone_cannot_sum():
    assert "times the right one" not in failed(passes((1e-2, 0.1, 1.0, TRAINED)))


def test_a_rank_that_brings_no_pass_is_refused():
    with pytest.raises(ParityError, match="rank 1 on host1 brought no float64 pass"):
        check_launch(DDP, [a_rank(0), a_rank(1, host="host1", parity=[])])


def test_the_control_is_exempt_by_declaration():
    gates = judge(CONTROL, [a_rank(0, parity=[]), a_rank(1, parity=[])], "whole")
    assert [(gate.name, gate.outcome) for gate in gates] == [
        ("float64", "exempt"),
        ("float32", "exempt"),
        ("ranks", "exempt"),
    ]


def test_a_verification_asks_for_float32_too_and_of_the_curve_for_nothing():
    three = [a_pass(), a_pass(kind="float32", differences=[9e-7]), a_pass(kind="as run", differences=[0.5])]
    gates = judge(DDP, [a_rank(parity=three)], "whole")
    assert [(gate.name, gate.outcome, gate.figure, gate.limit) for gate in gates] == [
        ("float64", "passed", 2e-16, 1e-12),
        ("float32", "passed", 9e-7, 1e-6),
        ("ranks", "passed", None, None),
    ]
    three[1] = a_pass(kind="float32", differences=[1.1e-6])
    assert [gate.outcome for gate in judge(DDP, [a_rank(parity=three)], "whole")] == [
        "passed",
        "failed",
        "passed",
    ]

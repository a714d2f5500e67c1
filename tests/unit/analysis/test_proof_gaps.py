"""Test what a passed proof leaves open, and how arms ended."""

from __future__ import annotations

import pytest

from compare.analysis.parity import (
    check_gates,
    check_launches,
    distance_of_ends,
    fail_alike,
    parity_of,
)
from compare.data.catalogue import DatasetSource
from compare.errors import ParityError
from compare.schema.arms import Arm
from compare.schema.parity import EndStep, WrongStep
from tests.unit.factories import a_launch, a_pass, a_rank, a_run

DDP, OWN = Arm("ddp"), Arm("own_torch")
OWN_DATA = DatasetSource(name="own", requested="own", directory="/here", workload="train.py:make")
NAMES, BIAS = ["0.weight", "0.bias"], ["0.bias"]
NOTHING: dict = {"trainable": 2, "shards": 2}


def gate_of(arm=DDP, ranks=2, end=None, **changes):
    taken = a_pass(**NOTHING | changes)
    gates = check_gates(arm, [a_rank(rank, parity=[taken], end=end) for rank in range(ranks)])
    return next(gate for gate in gates if gate.name == "float64")


@pytest.mark.parametrize(
    ("arm", "ranks", "untold", "outcome", "what"),
    [
        (DDP, 2, {"alone": [], "sum": [], "none": []}, "passed", ""),
        (DDP, 2, {"alone": NAMES, "sum": NAMES, "none": NAMES}, "nothing", "no parameter moves in 20 steps"),
        (DDP, 2, {"alone": NAMES, "sum": [], "none": []}, "nothing", "own gradient is already the mean"),
        (DDP, 1, {"none": []}, "nothing", "one rank synchronises nothing"),
        (Arm("single"), 1, {"none": []}, "passed", ""),
        (DDP, 2, {"alone": BIAS, "sum": BIAS, "none": BIAS}, "passed", "are zero: 0.bias"),
        (DDP, 2, {"alone": BIAS, "sum": [], "none": []}, "passed", "not told apart from one rank alone"),
        (DDP, 2, {"alone": [], "sum": NAMES, "none": []}, "passed", "from a sum in place of the mean"),
    ],
)
def test_proof_says_what_it_would_not_have_shown(arm, ranks, untold, outcome, what):
    gate = gate_of(arm, ranks=ranks, untold=untold)
    assert gate.outcome == outcome
    assert what in gate.what
    assert bool(gate.what) == bool(what)
    assert bool(gate.remedy) == (outcome == "nothing")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"acted": [False, False]}, "before_step changed no gradient"),
        ({"acted": [False, True]}, ""),
        ({"combined": 0.1}, "0.1 of its size away from the gradient of the combined batch"),
        ({"combined": 1e-12}, ""),
    ],
)
def test_clip_that_never_acts_and_another_loss_are_named(changes, what):
    gate = gate_of(untold={"alone": [], "sum": [], "none": []}, **changes)
    assert (gate.outcome, what in gate.what, bool(gate.what)) == ("passed", True, bool(what))


def test_step_at_the_end_proves_what_the_first_steps_could_not():
    silent = {"alone": NAMES, "sum": NAMES, "none": NAMES}
    end = EndStep(step=60, error=1e-7, limit=1e-5, alone=0.5)
    assert gate_of(untold=silent, end=end).outcome == "passed"
    assert gate_of(untold=silent, end=EndStep(step=60, why_not="its calls are compiled")).outcome == "nothing"


@pytest.mark.parametrize(
    ("changes", "outcome", "found"),
    [
        ({"error": 1.0, "share": 2.0}, "failed", "They are 2 times the mean"),
        ({"error": 1.0, "share": 0.0}, "failed", "They are zero"),
        ({"error": 0.7, "share": 0.8}, "failed", "differ from the mean by 0.7 of its size"),
        ({"error": None}, "failed", "a gradient is not a number"),
        ({"rate": 0.5}, "failed", "its learning rate is 0.5 times what the schedule says"),
        ({"optimizer_steps": 2}, "failed", "it calls optimizer.step() 2 times"),
        ({"optimizer_steps": 0}, "failed", "its parameters do not move"),
        ({"rate": 1e9}, "failed", "its learning rate is not zero, although the schedule's is"),
        ({"changes_outside": True}, "failed", "its parameters change outside the optimizer's step"),
        ({"alone": 1e-6}, "exempt", ""),
    ],
)
def test_wrong_step_at_the_end_fails_with_its_cause_if_gradients_tell_one(changes, outcome, found):
    end = EndStep(**{"step": 60, "error": 1e-7, "limit": 1e-5, "alone": 0.5} | changes)
    gates = check_gates(DDP, [a_rank(0, end=end), a_rank(1)])
    (gate,) = (gate for gate in gates if gate.name == "end")
    assert gate.outcome == outcome
    assert found in gate.found


@pytest.mark.parametrize(
    ("arm", "wrong", "outcome", "what"),
    [
        (DDP, {"uncarried": True}, "incomparable", "remembers something"),
        (OWN, {"structure": "2 optimizers step"}, "incomparable", "not a plain step of one loss (2 opt"),
        (OWN, {"rounded": True}, "incomparable", "except for half precision"),
        (DDP, {"structure": "2 optimizers step"}, "failed", "on gradients of other samples"),
        (OWN, {"structure": "2 backward passes", "shares": [2, 2], "unexplained": 0.0}, "failed", "a sum"),
    ],
)
def test_step_without_a_measure_is_not_accused(arm, wrong, outcome, what):
    step = WrongStep(step=1, parameter="0.weight", difference=0.1, **wrong)
    gate = gate_of(arm, differences=[0.1], wrong=step, error_of_first_update=0.7)
    assert gate.outcome == outcome
    assert what in (gate.what if outcome == "incomparable" else gate.found)


@pytest.mark.parametrize(
    ("rate", "found"),
    [(1.0, "a sum in place of the mean"), (2.0, "The learning rate is 2 times the right one")],
)
def test_factor_of_ranks_tells_a_sum_from_a_learning_rate(rate, found):
    step = WrongStep(step=1, parameter="0.weight", difference=0.1, shares=[2, 2], unexplained=0.0, rate=rate)
    gate = gate_of(OWN, differences=[0.1], wrong=step, error_of_first_update=1.0)
    assert found in gate.found


def test_workload_is_suspected_where_all_arms_fail_alike():
    step = WrongStep(step=1, parameter="0.weight", difference=0.1)
    ranks = [a_rank(0, parity=[a_pass(differences=[0.1], wrong=step, error_of_first_update=0.7)])]
    own = a_run({"ddp": [], "manual": [], "none": []}, dataset=OWN_DATA)
    pairs = [(DDP, ranks), (Arm("manual"), ranks), (Arm("none"), [a_rank(0, parity=[])])]
    with pytest.raises(ParityError) as caught:
        check_launches(pairs, own)
    assert "suspect the workload and not the arms" in caught.value.remedy
    with pytest.raises(ParityError) as caught:
        check_launches(pairs, a_run({"ddp": [], "manual": []}))
    assert "suspect" not in caught.value.remedy, "a built-in model remembers nothing"
    assert not fail_alike(own, [(DDP, "float64")])
    assert not fail_alike(a_run({"ddp": []}, dataset=OWN_DATA), [(DDP, "float64")])


@pytest.mark.parametrize(
    ("arms", "sketch", "distance"),
    [
        (["ddp", "manual"], [3.0, 4.5], pytest.approx(0.5 / 5.408, rel=1e-3)),
        (["ddp"], [3.0, 4.5], 0),
        (["ddp", "manual"], [], None),
    ],
)
def test_distance_of_ends_is_relative_to_the_way_and_needs_all_sketches(arms, sketch, distance):
    sketches = {"ddp": [3.0, 4.0], "manual": sketch}
    launches = [a_launch(arm, ranks=[a_rank(0, sketch=own), a_rank(1)]) for arm, own in sketches.items()]
    assert distance_of_ends(a_run({"ddp": [], "manual": []}, launches=launches), arms) == distance


def test_parity_says_why_nothing_is_proven_and_what_a_proof_leaves_open():
    empty = a_pass(**NOTHING, untold={"alone": NAMES, "sum": [], "none": []})
    right, silent = a_launch(), a_launch(ranks=[a_rank(r, parity=[empty]) for r in (0, 1)])
    found = parity_of(DDP, [right, silent])
    assert found.outcome == "nothing"
    assert "Do all ranks get the same samples" in found.why
    unmoved = a_launch(ranks=[a_rank(rank, unmoved=["0.bias"]) for rank in (0, 1)])
    assert any("0.bias" in line for line in parity_of(DDP, [unmoved]).open)

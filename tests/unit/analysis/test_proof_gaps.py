"""Test what a passed proof leaves open, and how arms ended."""

from __future__ import annotations

import msgspec
import pytest

from compare.analysis.ends import distance_of_ends
from compare.analysis.parity import check_gates, check_launches, fail_alike
from compare.analysis.proven import parity_of
from compare.data.catalogue import DatasetSource
from compare.errors import ParityError
from compare.schema.arms import Arm, parse_arm
from compare.schema.parity import EndStep, WrongStep
from tests.unit.factories import a_launch, a_pass, a_rank, a_run

DDP, OWN = Arm("ddp"), Arm("own_torch")
OWN_DATA = DatasetSource(name="own", requested="own", directory="/here", workload="train.py:make")
NAMES = ["0.weight", "0.bias"]
NOTHING: dict = {"trainable": 2, "shards": 2}


def gate_of(arm=DDP, ranks=2, end=None, **changes):
    taken = a_pass(**NOTHING | changes)
    gates = check_gates(arm, [a_rank(rank, parity=[taken], end=end) for rank in range(ranks)])
    return next(gate for gate in gates if gate.name == "float64")


@pytest.mark.parametrize(
    ("ranks", "untold", "outcome", "what"),
    [
        (2, {"alone": [], "sum": [], "none": []}, "passed", ""),
        (2, {"alone": NAMES, "sum": NAMES, "none": NAMES}, "nothing", "no parameter moves in 20 steps"),
        (2, {"alone": NAMES, "sum": [], "none": []}, "nothing", "own gradient is already the mean"),
        (1, {"none": []}, "nothing", "one rank synchronises nothing"),
        (2, {"alone": ["0.bias"], "sum": ["0.bias"], "none": ["0.bias"]}, "passed", "are zero: 0.bias"),
        (2, {"alone": ["0.bias"], "sum": [], "none": []}, "passed", "not told apart from one rank alone"),
        (2, {"alone": [], "sum": NAMES, "none": []}, "passed", "from a sum in place of the mean"),
    ],
)
def test_proof_says_what_it_would_not_have_shown(ranks, untold, outcome, what):
    gate = gate_of(ranks=ranks, untold=untold)
    assert gate.outcome == outcome
    assert what in gate.what
    assert bool(gate.what) == bool(what)
    assert bool(gate.remedy) == (outcome == "nothing")


def test_proof_of_an_arm_that_is_one_process_needs_no_second_rank():
    assert gate_of(Arm("single"), ranks=1, untold={"none": []}).outcome == "passed"


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
    ("changes", "found"),
    [
        ({"error": 1.0, "share": 2.0}, "They are 2 times the mean"),
        ({"error": 1.0, "share": 0.0}, "They are zero"),
        ({"error": 0.7, "share": 0.8}, "differ from the mean by 0.7 of its size"),
        ({"error": None}, "a gradient is not a number"),
        ({"rate": 0.5}, "its learning rate is 0.5 times what the schedule says"),
        ({"optimizer_steps": 2}, "it calls optimizer.step() 2 times"),
        ({"optimizer_steps": 0}, "its parameters do not move"),
        ({"rate": 1e9}, "its learning rate is not zero, as the schedule has it"),
        ({"changes_outside": True}, "its parameters change outside the optimizer's step"),
    ],
)
def test_wrong_step_at_the_end_fails_with_its_cause(changes, found):
    end = EndStep(**{"step": 60, "error": 1e-7, "limit": 1e-5, "alone": 0.5} | changes)
    gates = check_gates(DDP, [a_rank(0, end=end), a_rank(1)])
    (gate,) = (gate for gate in gates if gate.name == "end")
    assert gate.outcome == "failed"
    assert found in gate.found


def test_end_where_gradients_tell_nothing_is_exempt():
    end = EndStep(step=60, error=1e-7, limit=1e-5, alone=1e-6)
    gates = check_gates(DDP, [a_rank(0, end=end), a_rank(1)])
    assert [gate.outcome for gate in gates if gate.name == "end"] == ["exempt"]


@pytest.mark.parametrize(
    ("arm", "wrong", "outcome", "what"),
    [
        (DDP, {"uncarried": True}, "incomparable", "remembers something"),
        (
            OWN,
            {"structure": "2 optimizers step"},
            "incomparable",
            "not a plain step of one loss (2 opt",
        ),
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


def launches(**sketches):
    return [a_launch(arm, ranks=[a_rank(0, sketch=sketch), a_rank(1)]) for arm, sketch in sketches.items()]


def test_distance_of_ends_is_relative_to_the_way_and_needs_all_sketches():
    run = a_run({"ddp": [], "manual": []}, launches=launches(ddp=[3.0, 4.0], manual=[3.0, 4.5]))
    assert distance_of_ends(run, ["ddp", "manual"]) == pytest.approx(0.5 / 5.408, rel=1e-3)
    assert distance_of_ends(run, ["ddp"]) == 0
    without = a_run({"ddp": [], "manual": []}, launches=launches(ddp=[3.0, 4.0], manual=[]))
    assert distance_of_ends(without, ["ddp", "manual"]) is None


def test_parity_sums_up_the_worst_of_all_launches():
    empty = a_pass(**NOTHING, untold={"alone": NAMES, "sum": [], "none": []})
    right, silent = a_launch("ddp"), a_launch("ddp", ranks=[a_rank(r, parity=[empty]) for r in (0, 1)])
    assert parity_of(parse_arm("ddp"), [right]).outcome == "passed"
    found = parity_of(parse_arm("ddp"), [right, silent])
    assert found.outcome == "nothing"
    assert "Do all ranks get the same samples" in found.why
    unmoved = msgspec.structs.replace(
        right, ranks=[msgspec.structs.replace(rank, unmoved=["0.bias"]) for rank in right.ranks]
    )
    assert any("0.bias" in line for line in parity_of(parse_arm("ddp"), [unmoved]).open)

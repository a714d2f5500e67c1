"""Test which launches fail parity, which ranks an error names, and what a passed proof leaves open."""

from __future__ import annotations

import msgspec
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
from compare.schema.parity import EndStep, WrongStep, rounding_limit
from compare.schema.results import Evaluation
from tests.unit.factories import INITIAL, TRAINED, a_launch, a_pass, a_rank, a_run

OTHER = "5" * 64
DDP, CONTROL, OWN = Arm("ddp"), Arm("none"), Arm("own_torch")
FP16 = Arm("ddp", {"comm_hook": "fp16"})


def ranks(*hashes):
    return [
        a_rank(rank, host=f"host{rank}", initial_hash=initial, final_hash=final)
        for rank, (initial, final) in enumerate(hashes)
    ]


def check(arm, ranks, *earlier):
    """Check a launch of an arm after earlier ones."""
    run = msgspec.structs.replace(
        a_run({arm.label: []}), launches=[a_launch(arm.label, ranks=its) for its in earlier]
    )
    check_launches([(arm, ranks)], run)


def gate_of(arm=DDP, *, ranks=2, end=None, name="float64", **changes):
    """Return a gate of ranks that all took the same pass."""
    taken = a_pass(**{"trainable": 2, "shards": 2} | changes)
    gates = check_gates(arm, [a_rank(rank, parity=[taken], end=end) for rank in range(ranks)])
    return next(gate for gate in gates if gate.name == name)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("arm", [DDP, CONTROL], ids=lambda arm: arm.label)
def test_ranks_with_one_model_pass(arm, world_size):
    check(arm, ranks(*[(INITIAL, TRAINED)] * world_size))
    check(CONTROL, ranks((INITIAL, TRAINED), (INITIAL, OTHER)))


TRAINS, ENDS_APART, STARTS_APART = (INITIAL, TRAINED), (INITIAL, OTHER), (OTHER, TRAINED)
NEVER_TRAINS = (INITIAL, INITIAL)


@pytest.mark.parametrize(
    ("arm", "hashes", "what", "found"),
    [
        (DDP, [TRAINS, TRAINS, ENDS_APART], "ended with different", f"{TRAINED[:12]}, rank 2 {OTHER[:12]}"),
        (DDP, [TRAINS, STARTS_APART], "started from different", f"rank 1 {OTHER[:12]}"),
        (CONTROL, [TRAINS, STARTS_APART], "started from different", f"rank 1 {OTHER[:12]}"),
        (DDP, [TRAINS, NEVER_TRAINS], "rank 1 on host1 never trained", "bit for bit"),
        (CONTROL, [TRAINS, NEVER_TRAINS], "rank 1 on host1 never trained", "bit for bit"),
        (DDP, [NEVER_TRAINS] * 2, "rank 0 on host0 never trained", "it trained what a single process trains"),
    ],
)
def test_ranks_that_start_apart_or_end_apart_or_never_train_fail(arm, hashes, what, found):
    with pytest.raises(ParityError) as caught:
        check(arm, ranks(*hashes))
    assert caught.value.exit_code == 8
    assert arm.label in caught.value.what
    assert what in caught.value.what
    assert found in caught.value.found
    assert caught.value.remedy


@pytest.mark.parametrize(("changes", "remedy"), [({}, "larger one"), ({"parity": []}, "Fix the strategy")])
def test_learning_rate_too_small_for_float32_is_no_fault_of_the_arm(changes, remedy):
    (gate,) = (g for g in check_gates(DDP, [a_rank(0, final_hash=INITIAL, **changes)]) if g.name == "ranks")
    assert remedy in gate.remedy


# ---- beside a single process ----


def passes(*ranks):
    """Return ranks with passes: differences, what the first wrong step shows, hash."""
    found = []
    for rank, (differences, wrong, hash_) in enumerate(ranks):
        step = WrongStep(**{"step": 1, "parameter": "0.weight", "difference": 0.1} | wrong) if wrong else None
        error = 0.7 if step else 0.0
        taken = a_pass(hash=hash_, differences=differences, wrong=step, error_of_first_update=error)
        found.append(a_rank(rank, host=f"host{rank}", parity=[taken]))
    return found


def failed(ranks):
    with pytest.raises(ParityError) as caught:
        check(DDP, ranks)
    assert DDP.label in caught.value.what
    return caught.value.found


def test_pass_within_the_limit_passes():
    limit = rounding_limit("float64", 0.5, 2)
    taken = a_pass(differences=[limit], updates=[0.5], shards=2)
    check(DDP, [a_rank(0, parity=[taken]), a_rank(1, parity=[taken])])
    beyond = a_pass(differences=[limit], updates=[0.4], shards=2)
    assert "Allowed: 7e-15, for rounding." in failed([a_rank(0, parity=[beyond])])


def test_pass_beyond_the_limit_fails_with_its_figure():
    found = failed(passes(([1e-15, 2e-12], {"step": 2}, TRAINED), ([1e-15], None, TRAINED)))
    assert "float64 steps: 2.0e-12" in found
    assert "Allowed: 1e-12, for rounding." in found
    assert "Rank 0 is wrong from step 2: 0.weight is off by 1.0e-01." in found
    assert "steps: not a number" in failed(passes(([1e-15, None], {"difference": None}, TRAINED)))
    assert "differ at the end" in failed(passes(([1e-16], None, TRAINED), ([1e-16], None, OTHER)))


WRONG = [0.1, 0.2]
FIRST_STEP = WrongStep(step=1, parameter="0.weight", difference=0.1)
TWO = {"unexplained": 1e-12}


@pytest.mark.parametrize(
    ("meaning", "ranks"),
    [
        ("It is 2 times the right one: a sum in place of the mean", [TWO | {"shares": [2, 2]}] * 2),
        ("divided by 2: the mean is divided twice", [TWO | {"shares": [0.5, 0.5]}] * 2),
        ("It is 1.5 times the right one", [TWO | {"shares": [1.5, 1.5]}] * 2),
        ("The parameters do not change", [TWO | {"shares": [0, 0]}] * 2),
        ("contains 1 times the update before", [TWO | {"shares": [1, 1], "left_over": 1.0, "step": 2}] * 2),
        ("The gradient of rank 1 is missing", [TWO | {"shares": [1, 0]}] * 2),
        ("The gradient of rank 1 is missing", [TWO | {"shares": [1.5, 0, 1.5]}] * 3),
        ("Every rank trains on the same samples", [TWO | {"shares": [2, 0]}] * 2),
        ("The shares of the ranks' gradients are 0.7, 1.2", [TWO | {"shares": [0.7, 1.2]}] * 2),
        ("It is the plain mean: the step leaves out", [TWO | {"shares": [1, 1], "kept": 0.2}] * 2),
        ("a sum in place of the mean", [TWO | {"shares": [0.4, 0.4], "kept": 0.2}] * 2),
        ("on gradients of other samples", [{"unexplained": 0.4, "shares": [1, 1]}] * 2),
        ("Something is left over", [{"unexplained": 0.4, "shares": [1, 1], "step": 2}] * 2),
        ("Other ranks' first steps are right", [None, {"unexplained": 0.4, "shares": [1, 1]}]),
    ],
)
def test_pass_failure_is_diagnosed(meaning, ranks):
    assert meaning in failed(passes(*((WRONG if wrong else [0.0], wrong, TRAINED) for wrong in ranks)))


@pytest.mark.parametrize(
    ("meaning", "first", "second"),
    [
        ("It applies only one rank's gradient", TWO | {"shares": [2, 0]}, TWO | {"shares": [0, 2]}),
        ("Gradients are not averaged over the ranks", {"step": 1}, {"step": 1}),
    ],
)
def test_pass_failure_of_ranks_that_disagree_is_diagnosed(meaning, first, second):
    assert meaning in failed(passes((WRONG, first, TRAINED), (WRONG, second, OTHER)))


def test_own_step_that_steps_twice_is_named_by_its_rank():
    right = a_pass(optimizer_steps=[1, 1, 1])
    twice = a_pass(
        optimizer_steps=[1, 2, 1],
        differences=WRONG,
        wrong=WrongStep(step=2, parameter="1.bias", difference=0.2, shares=[2, 2], unexplained=0.0),
    )
    found = failed([a_rank(0, parity=[right]), a_rank(1, parity=[twice])])
    assert "Rank 1 is wrong from step 2: 1.bias is off by 2.0e-01. It calls optimizer.step() 2 times" in found


# ---- the samples of an own loader ----


@pytest.mark.parametrize(
    ("batches", "whole", "found"),
    [
        ((["a", "b"], ["a", "b"]), 100, ""),
        ((["a", "b"], ["a", "b"]), 106, ""),
        ((["a", "a"], ["a", "a"]), 100, "Ranks 0 and 1 begin with the same batch. Use"),
        ((["a", "b"], ["a", "b"]), -1, "60 % of a rank's first samples are also another rank's."),
        ((["a", "b"], ["a", "c"]), 100, "loader(1, 2, …) yields other samples on rank 1 than on rank 0"),
        ((["a", "b"], ["a", "b"]), 200, "An epoch of every rank has 200 samples, of 200 in all."),
        ((["a", "b"], ["a", "b"]), None, ""),
    ],
)
def test_samples_of_an_own_loader_are_checked(batches, whole, found):
    shared, whole = (0.6, 100) if whole == -1 else (0.0, whole)
    attested = {"batch": {"samples": 8, "training_samples": 200, "samples_of_an_epoch": whole}}
    ranks = [
        a_rank(rank, parity=[a_pass(first_batches=first, shared_samples=shared)], attestation=attested)
        for rank, first in enumerate(batches)
    ]
    gate = check_gates(DDP, ranks)[0]
    assert (gate.name, gate.outcome) == ("samples", "failed" if found else "passed")
    assert found in gate.found


# ---- arms that round ----


@pytest.mark.parametrize(("error", "outcome"), [(3e-4, "exempt"), (0.06, "failed"), (None, "failed")])
def test_lossy_arm_with_a_wrong_first_update_fails(error, outcome):
    """The share may be right by chance, on other ranks' samples."""
    gate = gate_of(FP16, share_of_first_update=1.0, error_of_first_update=error, differences=[1e-4, 1e-3])
    assert gate.outcome == outcome
    assert ("Allowed: 0.05 of the first update" in gate.found) == (outcome == "failed")


@pytest.mark.parametrize("kind", ["float64", "float32"])
@pytest.mark.parametrize(
    ("error", "outcome", "found"),
    [
        (0.7, "exempt", ""),
        (1.2, "failed", "1.2 times the size of that update"),
        (None, "failed", "not a number"),
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
    gates = check_gates(FP16, [a_rank(0), others])
    assert [gate.outcome for gate in gates] == ["exempt", "passed"]


# ---- by its hashes ----


def unproven(*finals, **changes):
    return [a_rank(rank, final_hash=final, parity=[], **changes) for rank, final in enumerate(finals)]


PROVEN = [a_rank(0), a_rank(1)]
DIVERGED = Evaluation(correct=980, samples=5_000, loss_sum=None)
OF_RANKS = [a_rank(rank, buffer_hash=str(rank)) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("ranks", "earlier"),
    [
        (unproven(TRAINED, TRAINED), [PROVEN]),
        (unproven(TRAINED, TRAINED), [unproven(TRAINED, TRAINED), PROVEN]),
        ([a_rank(rank, buffer_hash=str(rank), parity=[]) for rank in (0, 1)], [OF_RANKS]),
    ],
)
def test_launch_that_repeats_a_proven_one_has_its_proof(ranks, earlier):
    check(DDP, ranks, *earlier)


@pytest.mark.parametrize(
    ("ranks", "proven"),
    [
        (unproven(OTHER, OTHER), PROVEN),
        (unproven(TRAINED, OTHER), PROVEN),
        (unproven(TRAINED, TRAINED, buffer_hash="1"), PROVEN),
        (unproven(TRAINED, TRAINED, initial_hash=OTHER), PROVEN),
        (unproven(TRAINED, TRAINED, evaluation=DIVERGED), PROVEN),
        ([a_rank(rank, buffer_hash=str(1 - rank), parity=[]) for rank in (0, 1)], OF_RANKS),
    ],
    ids=["parameters", "parameters of a rank", "buffers", "start", "diverged", "buffers of other ranks"],
)
def test_launch_that_differs_from_the_proven_one_needs_a_proof(ranks, proven):
    with pytest.raises(ParityError, match="rank 0 on localhost has no float64 pass"):
        check(DDP, ranks, proven)


def test_control_is_exempt_from_every_gate():
    gates = check_gates(CONTROL, [a_rank(0, parity=[]), a_rank(1, parity=[])], "whole")
    outcomes = [(gate.name, gate.outcome) for gate in gates]
    assert outcomes == [("float64", "exempt"), ("float32", "exempt"), ("ranks", "exempt")]


@pytest.mark.parametrize(("figure", "outcome"), [(9e-7, "passed"), (1.1e-6, "failed")])
def test_gates_of_a_verification_hold_float32_and_no_curve(figure, outcome):
    kinds = {"float64": 2e-16, "float32": figure, "as run": 0.5}
    three = [a_pass(kind=kind, differences=[difference]) for kind, difference in kinds.items()]
    gates = check_gates(DDP, [a_rank(parity=three)], "whole")
    assert [(gate.name, gate.outcome, gate.figure, gate.limit) for gate in gates] == [
        ("float64", "passed", 2e-16, 1e-12),
        ("float32", outcome, figure, 1e-6),
        ("ranks", "passed", None, None),
    ]


@pytest.mark.parametrize(
    ("share", "error", "meaning"),
    [
        (2.0, 1.0, "It is 2 times the right one: a sum in place of the mean"),
        (0.5, 0.5, "the mean is divided twice"),
        (0.0, 1.0, "The parameters do not change"),
        (1.0, 0.7, "on gradients of other samples"),
    ],
)
def test_large_model_is_diagnosed_by_its_whole_first_update(share, error, meaning):
    whole = {"share_of_first_update": share, "error_of_first_update": error}
    taken = a_pass(differences=WRONG, wrong=FIRST_STEP, shards=2, **whole)
    assert meaning in failed([a_rank(rank, parity=[taken]) for rank in range(2)])


@pytest.mark.parametrize(("arm", "whose"), [(DDP, "the strategy"), (OWN, "your step")])
def test_remedy_names_what_has_to_be_fixed(arm, whose):
    gates = check_gates(arm, [a_rank(0, parity=[a_pass(differences=WRONG, wrong=FIRST_STEP)])])
    assert [gate.remedy.startswith(f"Fix {whose}:") for gate in gates if gate.outcome == "failed"] == [True]


# ---- what a passed proof leaves open ----

OWN_DATA = DatasetSource(name="own", requested="own", directory="/here", workload="train.py:make")
NAMES, BIAS = ["0.weight", "0.bias"], ["0.bias"]
SILENT = {"alone": NAMES, "sum": NAMES, "none": NAMES}


@pytest.mark.parametrize(
    ("arm", "ranks", "untold", "changes", "outcome", "what"),
    [
        (DDP, 2, {}, {}, "passed", ""),
        (DDP, 2, SILENT, {}, "nothing", "no parameter moves in 20 steps"),
        (DDP, 2, {"alone": NAMES}, {}, "nothing", "own gradient is already the mean"),
        (DDP, 1, {}, {}, "nothing", "one rank synchronises nothing"),
        (Arm("single"), 1, {}, {}, "passed", ""),
        (DDP, 2, {"alone": BIAS, "sum": BIAS, "none": BIAS}, {}, "passed", "are zero: 0.bias"),
        (DDP, 2, {"alone": BIAS}, {}, "passed", "a step without communication would pass"),
        (DDP, 2, {"sum": NAMES}, {}, "passed", "a sum in place of the mean would pass"),
        (DDP, 2, {}, {"acted": [False, False]}, "passed", "before_step changed no gradient"),
        (DDP, 2, {}, {"acted": [False, True]}, "passed", ""),
        (DDP, 2, {}, {"combined": 0.1}, "passed", "0.1 of its size away from the gradient of the combined"),
        (DDP, 2, {}, {"combined": 1e-12}, "passed", ""),
    ],
)
def test_proof_says_what_it_would_not_have_shown(arm, ranks, untold, changes, outcome, what):
    all_kinds = {"alone": [], "sum": [], "none": []} | untold
    gate = gate_of(arm, ranks=ranks, untold=all_kinds, **changes)
    assert gate.outcome == outcome
    assert what in gate.what
    assert bool(gate.what) == bool(what)
    assert bool(gate.remedy) == (outcome == "nothing")


@pytest.mark.parametrize(
    ("in_float64", "says"),
    [
        ({"sum": []}, "these parameters in float32, but not in float64: 0.bias"),
        ({"sum": BIAS}, "these parameters: 0.bias"),
    ],
)
def test_float32_pass_says_whether_float64_shows_the_wrong_step(in_float64, says):
    exact = a_pass(trainable=2, shards=2, untold=in_float64)
    rounded = a_pass(kind="float32", trainable=2, shards=2, untold={"sum": BIAS})
    found = check_gates(DDP, [a_rank(rank, parity=[exact, rounded]) for rank in range(2)], "whole")
    (gate,) = (gate for gate in found if gate.name == "float32")
    assert gate.outcome == "passed"
    assert gate.what.endswith(says)


def test_step_at_the_end_proves_what_the_first_steps_could_not():
    end = EndStep(step=60, error=1e-7, limit=1e-5, alone=0.5)
    assert gate_of(untold=SILENT, end=end).outcome == "passed"
    assert gate_of(untold=SILENT, end=EndStep(step=60, why_not="its calls are compiled")).outcome == "nothing"


@pytest.mark.parametrize(
    ("changes", "outcome", "found"),
    [
        ({"error": 1.0, "share": 2.0}, "failed", "They are 2 times the mean"),
        ({"error": 1.0, "share": 0.0}, "failed", "They are zero"),
        ({"error": 0.7, "share": 0.8}, "failed", "differ from the mean by 0.7 of the mean's size"),
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
    gate = gate_of(name="end", end=end)
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
        (
            *(OWN, {"rate": 2.0, "shares": [2, 2], "unexplained": 0.0}),
            *("failed", "The learning rate is 2 times the right one"),
        ),
    ],
)
def test_step_without_a_measure_is_not_accused(arm, wrong, outcome, what):
    step = WrongStep(step=1, parameter="0.weight", difference=0.1, **wrong)
    gate = gate_of(arm, differences=[0.1], wrong=step, error_of_first_update=0.7)
    assert gate.outcome == outcome
    assert what in (gate.what if outcome == "incomparable" else gate.found)


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
    empty = a_pass(trainable=2, shards=2, untold={"alone": NAMES, "sum": [], "none": []})
    right, silent = a_launch(), a_launch(ranks=[a_rank(r, parity=[empty]) for r in (0, 1)])
    found = parity_of(DDP, [right, silent])
    assert found.outcome == "nothing"
    assert "Do all ranks get the same samples" in found.why
    unmoved = a_launch(ranks=[a_rank(rank, unmoved=["0.bias"]) for rank in (0, 1)])
    assert any("0.bias" in line for line in parity_of(DDP, [unmoved]).open)


def test_models_of_hundreds_of_ranks_are_told_apart_in_one_short_line():
    with pytest.raises(ParityError) as caught:
        check(DDP, ranks(*[TRAINS] * 500, *[ENDS_APART] * 12))
    assert (
        caught.value.found
        == f"SHA-256 of the parameters: ranks 0–499 {TRAINED[:12]}, ranks 500–511 {OTHER[:12]}."
    )

"""What an arm declares: one process, another training, parameters in shards."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from backends import BACKENDS, Option
from compare.analysis import analyse
from compare.analysis.causes import compare_conditions
from compare.analysis.parity import check_gates
from compare.report.of_verification import _cell, verdict_of
from compare.schema.arms import Arm, parse_arm
from compare.schema.parity import WrongStep
from compare.schema.results import ArmVerification, Evaluation
from tests.unit.analysis.test_conditions import a_run_of, attested, attests
from tests.unit.factories import INITIAL, a_launch, a_pass, a_phased_block, a_rank, a_run
from tests.unit.pages import render


def markdown(run):
    return " ".join(render(run, analyse(run), "markdown").split())


@pytest.fixture
def declare(monkeypatch):
    """Return what lets the arm ddp declare something else."""

    def as_declared(**declared):
        monkeypatch.setitem(BACKENDS, "ddp", dataclasses.replace(BACKENDS["ddp"], **declared))
        return Arm("ddp")

    return as_declared


def a_run_beside(arm, replica, *, ranks, threads=1):
    """Return a run with an arm whose ranks work on the whole global batch, beside ranks of 64 samples."""

    def result(label, rank, milliseconds):
        own = label == arm
        facts = attested("ddp" if own else label, rank) | {"nice": 0, "core_quota": None}
        if own:
            facts["batch"] |= {"samples": 128, "shard": [0, 1]}
            facts |= {"threads": threads, "replica": {"reduce_op": "mean"} | replica}
            facts["group"] = attested("none", rank)["group"] if ranks == 1 else facts["group"]
        seen = Evaluation(correct=9_000, samples=10_000 // (ranks if own else 2), loss_sum=500.0)
        changes = {"collective_ns": [], "message_bytes": []} if own else {}
        return a_rank(rank, milliseconds=milliseconds, attestation=facts, evaluation=seen, **changes)

    measured = {"none": [4.0, 4.2, 4.1], "ddp": [5.0, 5.2, 5.1], arm: [8.0, 8.4, 8.2]}
    launches = [
        a_launch(
            label, round_, ranks=[result(label, rank, time) for rank in range(ranks if label == arm else 2)]
        )
        for label, times in measured.items()
        for round_, time in enumerate(times, start=1)
    ]
    return a_run(measured, launches=launches)


def a_run_with_single():
    return a_run_beside("single", {}, ranks=1, threads=2)


def a_run_with_layers():
    return a_run_beside("pipeline", {"bubble_in_theory": 0.2, "waiting_share": 0.334}, ranks=2)


# ---- one process ----


def test_conditions_of_one_process_are_declared_and_none_differs():
    found = {condition.item: condition for condition in compare_conditions(a_run_with_single())}
    assert [c.item for c in found.values() if c.kind == "different"] == []
    declared = {c.item for c in found.values() if "one process" in c.why}
    assert declared == {"host", "threads", "shard"}
    assert found["global batch size"].kind == "same"
    assert found["global batch size"].values == {"none": "128", "ddp": "128", "single": "128"}
    assert found["transport"].values["single"] == "–"
    run = a_run_with_single()
    for launch in run.of(Arm("single")):
        launch.ranks[0].attestation["batch"]["samples"] = 64
    different = [c.item for c in compare_conditions(run) if c.kind == "different"]
    assert different == ["global batch size"]


@pytest.mark.parametrize("run", [a_run_with_single(), a_run_with_layers()], ids=["one process", "layers"])
def test_summary_of_a_whole_batch_has_efficiency_and_no_sync_cost(run):
    arm = analyse(run).summary.arms[-1]
    assert arm.efficiency.mean == pytest.approx(0.5)
    assert arm.samples_per_second.mean == pytest.approx(128 / 8.2e-3, rel=1e-3)
    assert arm.speed_against_baseline.mean == pytest.approx(0.622, abs=0.005)
    assert arm.verdict is not None
    assert (arm.sync_seconds, arm.sync_share) == (None, None)
    detail = msgspec.structs.asdict(arm.detail)
    costs = ("exposed", "background", "imbalance", "communication", "blocked", "collective")
    assert [name for name in costs if detail[f"{name}_seconds"] is not None] == []


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_report_of_one_process_gives_the_reason_for_the_dash(form):
    run = a_run_with_single()
    text = " ".join(render(run, analyse(run), form, detail=True).split())
    assert "single: one process with all threads of a host and the global batch of 128." in text
    assert "It exchanges nothing, so it has an efficiency and no sync cost." in text
    assert "the same, added up in one process" in text
    assert "one process with all threads" not in markdown(a_run())


# ---- different layers on the ranks ----


def test_conditions_of_layers_declare_the_shared_batch():
    found = {condition.item: condition for condition in compare_conditions(a_run_with_layers())}
    assert [c.item for c in found.values() if c.kind == "different"] == []
    assert found["shard"].kind == "declared"
    assert "pipeline differs by declaration: its ranks hold different layers" in found["shard"].why
    assert found["global batch size"].kind == "same"


def test_report_of_layers_names_the_shared_batch_and_the_bubble():
    text = markdown(a_run_with_layers())
    assert "pipeline: its ranks hold different layers, and share the global batch of 128." in text
    assert "ranks would wait 20 % of a pass; they waited 33 %, with messages." in text


# ---- parameters in shards ----


def test_gate_of_ranks_in_shards_is_exempt_with_its_reason(declare):
    arm = declare(shards="parameters")
    gates = {gate.name: gate for gate in check_gates(arm, [a_rank(0), a_rank(1)])}
    assert gates["ranks"].outcome == "exempt"
    assert gates["ranks"].what == "held in shards; proven by the reference alone"
    assert gates["float64"].outcome == "passed"
    row = ArmVerification(arm="ddp", gates=list(gates.values()), seconds=1.0)
    assert verdict_of(row) == "the same training"
    assert _cell("ranks", row) == "held in shards; proven by the reference alone"
    step = WrongStep(step=1, parameter="0.weight", difference=0.1)
    wrong = [
        a_rank(rank, parity=[a_pass(differences=[0.1] * 20, wrong=step, error_of_first_update=0.7)])
        for rank in range(2)
    ]
    assert "A shard is not updated" in next(g for g in check_gates(arm, wrong) if g.name == "float64").found
    untrained = [a_rank(0), a_rank(1, final_hash=INITIAL)]
    assert {gate.name: gate.outcome for gate in check_gates(arm, untrained)}["ranks"] == "failed"


# ---- another training ----


def test_gate_of_another_training_is_exempt_with_its_figure(declare):
    arm = declare(training="another")
    far = [a_rank(rank, parity=[a_pass(differences=[0.1] * 20)]) for rank in range(2)]
    gates = {gate.name: gate for gate in check_gates(arm, far)}
    assert (gates["float64"].outcome, gates["float64"].figure) == ("exempt", 0.1)
    assert gates["ranks"].outcome == "passed"
    row = ArmVerification(arm="ddp", gates=list(gates.values()), seconds=1.0)
    assert verdict_of(row) == "another training by declaration"
    assert _cell("float64", row) == "1e-01 other"


def test_same_training_at_period_1_is_judged_by_the_reference(declare):
    period = Option("period", 8, "steps between averages", while_proven=1)
    declare(training="same at period 1", options=(period,))
    assert not Arm("ddp").same_training
    assert parse_arm("ddp:period=1").same_training
    far = [a_rank(rank, parity=[a_pass(differences=[0.1] * 20)]) for rank in range(2)]
    assert {gate.name: gate.outcome for gate in check_gates(Arm("ddp"), far)}["float64"] == "failed"
    gates = check_gates(Arm("ddp"), [a_rank(0), a_rank(1)])
    assert verdict_of(ArmVerification(arm="ddp", gates=gates, seconds=1.0)) == "the same training at period 1"
    text = markdown(a_run({"ddp": [5.0], "mpi": [5.0]}))
    assert "| ddp * | the same training at period 1 alone |" in text
    assert "| test loss |" in text
    assert "| test loss |" not in markdown(a_run({"mpi": [5.0]}))


def test_conditions_of_another_training_declare_its_reduce_op(declare):
    declare(training="another")
    run = a_run_of("ddp", "mpi", "horovod", change=attests("replica/reduce_op", "adasum", "ddp"))
    reduce_op = next(c for c in compare_conditions(run) if c.item == "reduce op")
    assert reduce_op.kind == "declared"
    assert "another training" in reduce_op.why


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"training": "another"}, "ddp * | another training by declaration"),
        ({"shards": "parameters"}, "ddp | the same, held in shards"),
    ],
)
def test_report_of_a_declaration_refuses_equal_hashes_as_evidence(declare, declared, says):
    declare(**declared)
    text = markdown(a_run({"none": [4.0], "ddp": [5.0]}))
    assert f"| {says} |" in text
    assert "bit for bit" not in text


# ---- a cycle, and phases that are fused ----


def test_conditions_of_a_cycle_ignore_its_own_number_of_timed_steps():
    launches = []
    for arm, cycle, blocks in (("ddp", 8, 3), ("mpi", 1, 4)):
        facts = {"group": {"transport": "none"}, "replica": {"cycle": cycle}}
        ranks = [a_rank(rank, milliseconds=[5.0] * blocks, attestation=facts) for rank in range(2)]
        launches.append(a_launch(arm, ranks=ranks))
    run = a_run({"ddp": [5.0], "mpi": [5.0]}, launches=launches)
    timed = next(c for c in compare_conditions(run) if c.item == "timed steps")
    assert timed.kind == "same"


def test_summary_of_fused_phases_compares_backward_with_both():
    own = a_phased_block(backward=[6.0], sync=[1.0], step=[1.0])
    reference = a_phased_block("reference", forward=[2.0], backward=[3.0], sync=[0.0], step=[1.0])
    ranks = [
        msgspec.structs.replace(found, blocks=[*found.blocks, own, reference])
        for found in (a_rank(rank, reference=[6.0]) for rank in range(2))
    ]
    run = a_run({"ddp": [5.0]}, launches=[a_launch("ddp", ranks=ranks)])
    detail = analyse(run).summary.arms[0].detail
    assert detail.forward_seconds is None
    assert detail.backward_seconds.mean == pytest.approx(1e-3)
    assert detail.blocked_seconds.mean == pytest.approx(1e-3)


def test_bytes_held_differ_by_the_library():
    launches = []
    for arm, sizes in (("ddp", [200, 200]), ("zero", [120, 80])):
        held = [{"parameter_bytes": 100, "optimizer_state_bytes": size} for size in sizes]
        facts = [{"group": {"transport": "TCP over lo"}, "held": own} for own in held]
        launches.append(a_launch(arm, ranks=[a_rank(r, attestation=own) for r, own in enumerate(facts)]))
    run = a_run({"ddp": [5.0], "zero": [6.0]}, launches=launches)
    held = next(c for c in analyse(run).conditions if c.item == "bytes held")
    assert (held.kind, held.by_library) == ("declared", True)
    assert "rank 1: optimizer_state=80, parameter=100" in held.values["zero"]

"""Test gates: arms under two interpreters in one run."""

from __future__ import annotations

import msgspec
import pytest

from compare.analysis import analyse
from compare.analysis.conditions import compare_conditions
from compare.analysis.gate import check_interpreter, doubled, judge_gate
from compare.errors import ConditionsError
from compare.experiment.schedule import is_settled
from compare.schema.arms import Interpreter, parse_arm
from tests.unit.factories import a_config, a_launch, a_rank, a_run

OTHER = Interpreter(
    executable="/old/bin/python",
    prefix="/old",
    python="3.11.7",
    torch="2.12.0",
    ringside="0.1.0",
    sources="/old/lib",
    own_sources=True,
)


def attesting(torch, **changes):
    return {"group": {"transport": "TCP over lo"}, "threads": 1, "torch": torch} | changes


def a_gate(new, old, **changes):
    arms = doubled([parse_arm("ddp:bucket_cap_mb=1")], OTHER)
    config = msgspec.structs.replace(a_config("ddp"), arms=arms, baseline=arms[1].label, slower_limit=0.05)
    launches = []
    for arm, times, torch in ((arms[0], new, "2.13.0"), (arms[1], old, "2.12.0")):
        for round_, time in enumerate(times, start=1):
            ranks = [a_rank(r, milliseconds=time, attestation=attesting(torch)) for r in range(2)]
            launches.append(a_launch(arm.label, round_, ranks=ranks))
    return msgspec.structs.replace(a_run({"ddp": [1.0]}), config=config, launches=launches, **changes)


OLD = [5.0, 6.0, 5.5, 5.2, 5.1]


@pytest.mark.parametrize(
    ("factor", "outcome"), [(1.10, "slower"), (1.0, "passed"), (1.02, "passed"), (0.9, "passed")]
)
def test_gate_compares_twins_round_by_round(factor, outcome):
    gate = judge_gate(a_gate([time * factor * (1 + 0.002 * (-1) ** i) for i, time in enumerate(OLD)], OLD))
    assert gate.outcome == outcome
    assert gate.changes[0].arm == "ddp:bucket_cap_mb=1"
    assert gate.changes[0].ratio == pytest.approx(factor, rel=0.002)


def test_gate_without_enough_rounds_or_cores_is_open():
    assert judge_gate(a_gate(OLD[:4], OLD[:4])).outcome == "too noisy"
    assert judge_gate(a_gate([], [])).outcome == "too noisy"
    assert judge_gate(a_gate(OLD, OLD, cores=1)).outcome == "too noisy"
    assert judge_gate(a_run()) is None


def test_gate_run_ends_when_every_arm_is_settled():
    assert is_settled(a_gate(OLD, OLD))
    assert not is_settled(a_gate([4.0, 7.0, 5.0, 6.0, 4.5], OLD))


def test_gate_names_its_versions_and_declares_the_difference():
    run = a_gate(OLD, OLD)
    assert [arm.label for arm in run.config.arms] == ["ddp:bucket_cap_mb=1", "ddp:bucket_cap_mb=1@against"]
    (one,) = judge_gate(run).changed
    assert (one.what, one.old, one.new) == ("torch", "2.12.0", "2.13.0")
    torch = next(found for found in compare_conditions(run) if found.item == "torch")
    assert (torch.kind, "another interpreter" in torch.why) == ("declared", True)
    assert analyse(run).gate is not None


def test_rank_of_another_environment_is_refused():
    run = a_gate(OLD, OLD)
    new, old = run.config.arms
    there = a_rank(attestation=attesting("2.12.0", prefix="/old", sources="/old/lib"))
    check_interpreter(run, old, [there], here="/new")
    elsewhere = a_rank(attestation=attesting("2.13.0", prefix="/new", sources="/old/lib"))
    with pytest.raises(ConditionsError, match="rank 0 did not run in /old"):
        check_interpreter(run, old, [there, elsewhere], here="/new")
    check_interpreter(run, new, [elsewhere], here="/new")
    with pytest.raises(ConditionsError, match="rank 0 did not run in /new"):
        check_interpreter(run, new, [there], here="/new")
    check_interpreter(a_run(), new, [there], here="/new")  # no gate

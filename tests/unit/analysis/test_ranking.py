"""Test which arm is called fastest."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare.analysis.looks import FIRST_LOOK
from compare.analysis.ranking import find_lead, log_ratios, verdicts
from compare.analysis.summary import summarise
from compare.schema.arms import parse_arm
from tests.unit.factories import a_run

ARMS = ("none", "ddp", "manual", "mpi")


def test_log_ratios_cover_common_rounds_and_are_positive_if_faster():
    run = a_run({"ddp": [4.0, 8.0, 9.0], "mpi": [2.0, 16.0]})
    assert log_ratios(run, parse_arm("mpi"), parse_arm("ddp")) == pytest.approx([math.log(2), -math.log(2)])


# ---- the fastest arm ----

CLEAR = {"none": [4] * 5, "ddp": [6.0, 6.1, 6.0, 6.2, 6.1], "mpi": [5.0, 5.1, 5.0, 5.1, 5.2]}


FASTEST = {
    "a clear difference": (CLEAR, "mpi"),
    "the control is faster": ({"none": [1] * 5, "ddp": [5] * 5, "mpi": [6] * 5}, "ddp"),
    "four rounds": ({arm: times[:4] for arm, times in CLEAR.items()}, None),
    "ranges overlap": (
        {"none": [4] * 5, "ddp": [5.0, 6.0, 5.2, 5.9, 5.4], "mpi": [5.5, 5.3, 7.0, 5.1, 6.4]},
        None,
    ),
    "faster than one arm of two": (CLEAR | {"manual": [5.1, 5.0, 5.2, 5.1, 5.2]}, None),
    "within the margin": (CLEAR | {"ddp": [5.05, 5.15, 5.05, 5.15, 5.25]}, None),
    "one round": ({"none": [4], "ddp": [5.0], "mpi": [6.0]}, None),
    "one arm": ({"none": [4] * 5, "ddp": [5.0] * 5}, None),
    "one arm has too few": ({"none": [4] * 5, "ddp": [5.0] * 5, "mpi": [6.0, 6.1, 6.0, 6.1]}, None),
}


@pytest.mark.parametrize("case", FASTEST)
def test_fastest_arm_needs_proof(case):
    milliseconds, name = FASTEST[case]
    run = a_run(milliseconds)
    lead = find_lead(run)
    assert (lead and lead.fastest) == name
    assert [arm.arm for arm in summarise(run).arms if arm.fastest] == ([name] if name else [])


@pytest.mark.parametrize("cores", [1, 2])
def test_fastest_arm_is_not_named_if_oversubscribed(cores):
    summary = summarise(a_run(CLEAR, cores=cores))
    assert summary.oversubscribed is (cores == 1)
    assert any(arm.fastest for arm in summary.arms) is (cores == 2)


@st.composite
def comparable(draw):
    """Draw arms that differ clearly, a little or not at all."""
    rounds = draw(st.integers(FIRST_LOOK, 8))
    arms = draw(st.permutations(ARMS))[: draw(st.integers(2, len(ARMS)))]
    spread = draw(st.sampled_from([0.001, 0.01, 0.2]))
    times = {}
    for arm in arms:
        level = draw(st.sampled_from([1.0, 1.02, 1.2, 3.0]))
        noise = draw(st.lists(st.floats(-1, 1), min_size=rounds, max_size=rounds))
        times[arm] = [10 * level * math.exp(spread * own) for own in noise]
    return times


@settings(deadline=None)
@given(comparable())
def test_fastest_arm_has_the_lowest_mean_and_all_others_are_slower(milliseconds):
    run = a_run(milliseconds)
    lead = find_lead(run)
    if name := lead and lead.fastest:
        others = [arm for arm in milliseconds if arm not in {"none", name}]
        means = {arm: statistics.geometric_mean(milliseconds[arm]) for arm in [name, *others]}
        assert min(means, key=means.get) == name
        against = verdicts(run, name)
        assert {arm: against[arm].kind for arm in others} == dict.fromkeys(others, "slower")

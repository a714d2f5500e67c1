"""Test which arm is called fastest."""

from __future__ import annotations

import math

import pytest

from compare.analysis import analyse
from compare.analysis.figures import Figures
from compare.analysis.ranking import find_lead, log_ratios
from tests.unit.factories import a_run


def test_log_ratios_cover_common_rounds_and_are_positive_if_faster():
    run = a_run({"ddp": [4.0, 8.0, 9.0], "mpi": [2.0, 16.0]})
    assert log_ratios(Figures(run), "mpi", "ddp") == pytest.approx([math.log(2), -math.log(2)])


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
    lead = find_lead(Figures(run))
    assert (lead and lead.fastest) == name
    assert [arm.arm for arm in analyse(run).summary.arms if arm.fastest] == ([name] if name else [])


@pytest.mark.parametrize("cores", [1, 2])
def test_fastest_arm_is_not_named_if_oversubscribed(cores):
    summary = analyse(a_run(CLEAR, cores=cores)).summary
    assert summary.oversubscribed is (cores == 1)
    assert any(arm.fastest for arm in summary.arms) is (cores == 2)

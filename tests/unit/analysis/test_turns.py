"""Figures of arms that took turns."""

from __future__ import annotations

import math

import msgspec
import pytest

from compare.analysis import analyse
from compare.analysis.ranking import log_ratios
from compare.analysis.step_times import step_seconds
from compare.analysis.turns import summarise_turns
from compare.report import render
from compare.schema.results import Interleaved
from tests.unit.factories import a_block, a_launch, a_rank, a_run

IN_TURNS = Interleaved(mode="blocks")


def a_rank_of(turns, **changes):
    """Return a rank with two blocks of each turn, from their milliseconds."""
    blocks = [a_block(ms, turn=turn) for turn, ms in enumerate(turns, start=1) for _ in range(2)]
    return a_rank(0, **{"blocks": blocks} | changes)


def a_cohort(arms, **changes):
    """Return a run of one cohort, from every arm's milliseconds."""
    launches = [
        a_launch(arm, ranks=[a_rank_of(turns, **changes)], number=n)
        for n, (arm, turns) in enumerate(arms.items(), 1)
    ]
    run = a_run({arm: [1.0] for arm in arms}, interleaved=IN_TURNS)
    return msgspec.structs.replace(run, launches=launches)


def test_step_time_is_the_geometric_mean_over_turns():
    launch = a_launch(ranks=[a_rank_of([2.0, 8.0])])
    assert step_seconds(launch) == pytest.approx(4e-3)


def test_ratio_of_two_arms_is_the_mean_ratio_of_their_turns():
    run = a_cohort({"ddp": [4.0, 6.0, 9.0], "mpi": [2.0, 5.0, 3.0]})
    ddp, mpi = run.config.arms
    expected = sum(math.log(a / b) for a, b in [(4, 2), (6, 5), (9, 3)]) / 3
    assert log_ratios(run, mpi, ddp) == [pytest.approx(expected)]


def test_arm_that_takes_cpu_time_while_it_waits_is_named():
    quiet = a_cohort({"ddp": [4.0]}, waited_ns=10**9, waited_cpu_ns=19 * 10**6)
    assert summarise_turns(quiet).awake == {}
    busy = a_cohort({"ddp": [4.0]}, waited_ns=10**9, waited_cpu_ns=90 * 10**6)
    assert summarise_turns(busy).awake == {"ddp": pytest.approx(0.09)}
    assert "more than 2 % of a core: ddp 9.0 %." in render(busy, analyse(busy), "table")


def test_steps_beyond_the_training_are_named():
    run = a_cohort({"ddp": [4.0], "mpi": [2.0]}, trained_steps=250)
    printed = render(run, analyse(run), "markdown")
    assert "Every arm trained 100 steps. For timing only, every arm went on after them." in printed
    assert summarise_turns(a_cohort({"ddp": [4.0]}, trained_steps=100)).trained_on == []


def test_memory_of_a_cohort_is_that_of_all_its_ranks():
    run = a_cohort({"ddp": [4.0], "mpi": [2.0]}, whole_peak_memory_bytes=300 << 20)
    assert summarise_turns(run).memory_bytes == 600 << 20


def test_launches_one_after_another_have_no_turns():
    run = msgspec.structs.replace(a_cohort({"ddp": [4.0]}), interleaved=Interleaved(mode="launches"))
    assert summarise_turns(run) is None

"""Figures of arms that took turns."""

from __future__ import annotations

import math

import msgspec
import pytest
from scipy.stats import linregress

from compare.analysis import analyse
from compare.analysis.ranking import log_ratios
from compare.analysis.step_times import step_seconds
from compare.analysis.waiting import summarise_turns
from compare.report.sentences import conclusion
from compare.schema.results import Interleaved
from tests.unit.factories import a_block, a_launch, a_rank, a_run
from tests.unit.pages import render


def a_rank_of(turns, **changes):
    """Return a rank with two blocks of each turn, from their milliseconds."""
    blocks = [a_block(ms, turn=turn) for turn, ms in enumerate(turns, start=1) for _ in range(2)]
    return a_rank(0, **{"blocks": blocks} | changes)


def a_cohort(arms, mode="blocks", **changes):
    """Return a run of one cohort, from every arm's milliseconds."""
    launches = [a_launch(arm, ranks=[a_rank_of(turns, **changes)]) for arm, turns in arms.items()]
    return a_run({arm: [] for arm in arms}, interleaved=Interleaved(mode=mode), launches=launches)


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
    assert "more than 2 % of a core: ddp 9.0 %." in render(busy, analyse(busy), "table", wide=True)


def test_steps_beyond_the_training_are_named():
    run = a_cohort({"ddp": [4.0], "mpi": [2.0]}, trained_steps=250)
    printed = render(run, analyse(run), "markdown")
    assert "Every arm trained 100 steps. For timing only, every arm went on after them." in printed
    assert summarise_turns(a_cohort({"ddp": [4.0]}, trained_steps=100)).trained_on == []


def test_memory_of_a_cohort_is_that_of_all_its_ranks():
    run = a_cohort({"ddp": [4.0], "mpi": [2.0]}, whole_peak_memory_bytes=300 << 20)
    assert summarise_turns(run).memory_bytes == 600 << 20


def test_launches_one_after_another_have_no_turns():
    assert summarise_turns(a_cohort({"ddp": [4.0]}, mode="launches")) is None


def a_waiting_rank(loads, time):
    """Return a rank whose turns waited for a core."""
    blocks = []
    for turn, load in enumerate(loads, start=1):
        block = a_block(time(load), turn=turn)
        blocks += [msgspec.structs.replace(block, cpu_ns=int(block.wall_ns / load))] * 2
    return a_rank(0, blocks=blocks)


def under_load(loads, arms):
    """Return a run from the load of every pass."""
    cohorts = [loads[at : at + 4] for at in range(0, len(loads), 4)]
    launches = [
        a_launch(arm, round_, ranks=[a_waiting_rank(cohort, time)])
        for round_, cohort in enumerate(cohorts, start=1)
        for arm, time in arms.items()
    ]
    changes = {"interleaved": Interleaved(mode="blocks"), "config": {"rounds": len(cohorts)}}
    return a_run({arm: [] for arm in arms}, launches=launches, **changes)


BUSY_AND_QUIET = [1.0, 1.1, 2.5, 2.2, 1.3, 1.0, 3.0, 1.9, 1.2, 2.8]
BUSY_AND_QUIET += [1.1, 1.6, 2.0, 1.0, 2.4, 3.1, 1.4, 1.0, 1.2, 2.6]
SPINS = {"none": lambda load: load, "ddp": lambda load: 4 + load, "mpi": lambda load: 1.3 * load**2.5}


def test_ratio_that_changes_with_the_load_is_named():
    run = under_load(BUSY_AND_QUIET, SPINS)
    (found,) = analyse(run).load_dependence
    assert found.arm == "mpi"
    assert found.quiet_ratio > 2.5
    assert found.busy_ratio < 1
    ratios = [math.log((4 + load) / (1.3 * load**2.5)) for load in BUSY_AND_QUIET]
    theirs = linregress([math.log(load) for load in BUSY_AND_QUIET], ratios)
    assert found.p == pytest.approx(theirs.pvalue, rel=1e-3)
    printed = render(run, analyse(run), "markdown")
    assert "On a quiet machine mpi has 3.80× the speed (a rank of none gets 1.00 cores)." in printed


def test_lead_that_depends_on_the_load_is_an_average():
    run = under_load(BUSY_AND_QUIET, SPINS | {"mpi": lambda load: 0.5 * load**2})
    assert conclusion(run, analyse(run)).endswith("(on average over loads).")


def test_load_shows_through_a_machine_of_changing_speed():
    speed = {load: 1 + 0.3 * math.sin(9 * index) for index, load in enumerate(BUSY_AND_QUIET)}
    arms = SPINS | {"none": speed.__getitem__}
    assert [found.arm for found in analyse(under_load(BUSY_AND_QUIET, arms)).load_dependence] == ["mpi"]


NOISE = {load: math.exp(0.5 * math.sin(7 * index)) for index, load in enumerate(BUSY_AND_QUIET)}


@pytest.mark.parametrize(
    ("loads", "arms"),
    [
        (BUSY_AND_QUIET, {"mpi": lambda load: 5 * load**0.8, "ddp": lambda load: 4 * load}),
        (BUSY_AND_QUIET, {"mpi": lambda load: 5 * load, "ddp": lambda load: 4 * load}),
        (BUSY_AND_QUIET, {"mpi": lambda load: load * NOISE[load]}),
        ([1 + 0.02 * math.sin(index) for index in range(20)], {"mpi": lambda load: 1.3 * load**20}),
        (BUSY_AND_QUIET[:8], {}),
    ],
    ids=["it hardly changes", "it is constant", "within the noise", "a quiet machine", "few passes"],
)
def test_ratio_that_need_not_change_with_the_load_is_not_named(loads, arms):
    assert analyse(under_load(loads, SPINS | arms)).load_dependence == []

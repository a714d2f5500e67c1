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
from compare.report import render
from compare.report.sentences import conclusion
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
    run = msgspec.structs.replace(a_cohort({"ddp": [4.0]}), interleaved=Interleaved(mode="launches"))
    assert summarise_turns(run) is None


def a_waiting_rank(loads, time):
    """Return a rank whose turns waited for a core."""
    rank = a_rank_of([time(load) for load in loads])
    blocks = [
        msgspec.structs.replace(block, cpu_ns=int(block.wall_ns / loads[block.turn - 1]))
        for block in rank.blocks
    ]
    return msgspec.structs.replace(rank, blocks=blocks)


def under_load(loads, arms):
    """Return a run from the load of every pass."""
    cohorts = [loads[at : at + 4] for at in range(0, len(loads), 4)]
    launches = [
        a_launch(arm, round_, ranks=[a_waiting_rank(cohort, time)], number=number)
        for round_, cohort in enumerate(cohorts, start=1)
        for number, (arm, time) in enumerate(arms.items(), start=round_ * 10)
    ]
    run = a_run({arm: [1.0] for arm in arms}, interleaved=IN_TURNS, config={"rounds": len(cohorts)})
    return msgspec.structs.replace(run, launches=launches)


BUSY_AND_QUIET = [1.0, 1.1, 2.5, 2.2, 1.3, 1.0, 3.0, 1.9, 1.2, 2.8]
BUSY_AND_QUIET += [1.1, 1.6, 2.0, 1.0, 2.4, 3.1, 1.4, 1.0, 1.2, 2.6]
SPINS = {"none": lambda load: load, "ddp": lambda load: 4 + load, "mpi": lambda load: 1.3 * load**2.5}


def test_level_of_a_slope_is_that_of_the_regression():
    run = under_load(BUSY_AND_QUIET, SPINS)
    (found,) = analyse(run).load_dependence
    ratios = [math.log((4 + load) / (1.3 * load**2.5)) for load in BUSY_AND_QUIET]
    expected = linregress([math.log(load) for load in BUSY_AND_QUIET], ratios).pvalue
    assert found.p == pytest.approx(expected, rel=1e-3)


def test_ratio_that_changes_with_the_load_is_named():
    run = under_load(BUSY_AND_QUIET, SPINS)
    (found,) = analyse(run).load_dependence
    assert found.arm == "mpi"
    assert found.quiet_ratio > 2.5
    assert found.busy_ratio < 1
    printed = render(run, analyse(run), "markdown")
    assert "On a quiet machine mpi has 3.80× the speed (a rank of none gets 1.00 cores)." in printed


def test_lead_that_depends_on_the_load_is_an_average():
    run = under_load(BUSY_AND_QUIET, SPINS | {"mpi": lambda load: 0.5 * load**2})
    assert conclusion(run, analyse(run)).endswith("(on average over loads).")


def test_load_shows_through_a_machine_of_changing_speed():
    speed = {load: 1 + 0.3 * math.sin(9 * index) for index, load in enumerate(BUSY_AND_QUIET)}
    arms = SPINS | {"none": speed.__getitem__}
    assert [found.arm for found in analyse(under_load(BUSY_AND_QUIET, arms)).load_dependence] == ["mpi"]


@pytest.mark.parametrize("power", [0.8, 1.0])
def test_ratio_that_hardly_changes_is_not_named(power):
    arms = SPINS | {"mpi": lambda load: 5 * load**power, "ddp": lambda load: 4 * load}
    assert analyse(under_load(BUSY_AND_QUIET, arms)).load_dependence == []


def test_no_ratio_is_named_on_a_quiet_machine():
    quiet = [1 + 0.02 * math.sin(index) for index in range(20)]
    steep = SPINS | {"mpi": lambda load: 1.3 * load**20}
    assert analyse(under_load(quiet, steep)).load_dependence == []


def test_slope_within_the_noise_is_not_named():
    noise = {load: math.exp(0.5 * math.sin(7 * index)) for index, load in enumerate(BUSY_AND_QUIET)}
    arms = SPINS | {"mpi": lambda load: load * noise[load]}
    assert analyse(under_load(BUSY_AND_QUIET, arms)).load_dependence == []


def test_no_ratio_is_named_after_few_passes():
    assert analyse(under_load(BUSY_AND_QUIET[:8], SPINS)).load_dependence == []

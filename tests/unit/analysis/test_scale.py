"""Efficiency by paired ratios, the ideal, and where arms bend."""

import msgspec
import pytest

from compare.analysis.runs import summarise_scale
from tests.unit.factories import a_block
from tests.unit.scales import BENDING, a_scale


def point_of(figures, arm, ranks):
    return next(point for point in figures.points if (point.arm, point.ranks) == (arm, ranks))


def test_efficiency_is_the_mean_of_ratios_within_rounds():
    """Rounds differ by 10 %, but each ratio is one half."""
    point = point_of(summarise_scale(a_scale(BENDING)), "ddp", 2)
    found = point.efficiency
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    assert point.ideal_seconds == pytest.approx(point.step_seconds.mean / 2)
    assert found.n == 3
    stopped = a_scale({1: {"ddp": [4.0, 5.0, 6.0]}, 2: {"ddp": [5.0, 5.0]}})
    assert point_of(summarise_scale(stopped), "ddp", 2).efficiency.n == 2, "rounds that both counts have"


def test_strong_scaling_is_ideal_if_the_step_time_halves():
    times = {1: {"ddp": [8.0] * 3}, 2: {"ddp": [4.0] * 3}, 4: {"ddp": [4.0] * 3}}
    figures = summarise_scale(a_scale(times, mode="strong"))
    assert [point.efficiency.mean for point in figures.points] == pytest.approx([1, 1, 0.5])
    assert [point.ideal_seconds * 1e3 for point in figures.points] == pytest.approx([8, 4, 2])
    assert [point.batch_size_per_rank for point in figures.points] == [64, 32, 16]


def test_bend_is_split_by_what_the_control_loses_too():
    (bend,) = summarise_scale(a_scale(BENDING, cores=2)).bends
    assert (bend.arm, bend.ranks) == ("ddp", 2)
    assert bend.lost_seconds * 1e3 == pytest.approx(4.2, rel=0.01)
    assert bend.computing_seconds * 1e3 == pytest.approx(0.4)


def _with_reference(run, reference, collective_ns):
    """Give each rank a step time without synchronisation."""
    launches = []
    for launch in run.launches:
        own = {"blocks": [*launch.ranks[0].blocks, a_block(reference, mode="reference")]}
        own["collective_ns"] = [collective_ns] * 3
        ranks = [msgspec.structs.replace(rank, **own) for rank in launch.ranks]
        launches.append(msgspec.structs.replace(launch, ranks=ranks))
    return msgspec.structs.replace(run, launches=launches)


@pytest.mark.parametrize(("mode", "computing"), [("weak", 0.5), ("strong", 2.5)])
def test_bend_names_what_grew_since_the_count_before(mode, computing):
    times = {2: {"ddp": [5.0] * 3}, 4: {"ddp": [5.0 if mode == "weak" else 2.5] * 3}, 8: {"ddp": [9.0] * 3}}
    scale = a_scale(times, mode=mode)
    then, now = _with_reference(scale.runs[4], 4.0, 10**6), _with_reference(scale.runs[8], 4.5, 3 * 10**6)
    scale = msgspec.structs.replace(scale, runs=scale.runs | {4: then, 8: now})
    growth = summarise_scale(scale).bends[0].growth
    assert growth.since_ranks == 4
    assert growth.computing_seconds * 1e3 == pytest.approx(computing)
    assert growth.collective_seconds * 1e3 == pytest.approx(2.0)
    parts = growth.computing_seconds + growth.waiting_seconds + growth.synchronising_seconds
    assert parts == pytest.approx(growth.step_seconds)
    assert growth.step_seconds * 1e3 == pytest.approx(4.0 if mode == "weak" else 8.5)


def test_strong_scaling_with_a_constant_cost_has_no_growth():
    """Computing halves, and each step synchronises for 2 ms."""
    times = {2: {"ddp": [10.0] * 3}, 4: {"ddp": [6.0] * 3}}
    scale = a_scale(times, mode="strong")
    runs = {count: _with_reference(run, 16.0 / count, 10**6) for count, run in scale.runs.items()}
    (bend,) = summarise_scale(msgspec.structs.replace(scale, runs=runs)).bends
    growth = bend.growth
    assert growth.share_seconds * 1e3 == pytest.approx(6.0)
    parts = (growth.computing_seconds, growth.waiting_seconds, growth.synchronising_seconds)
    assert [growth.step_seconds, growth.collective_seconds, *parts] == pytest.approx([0.0] * 5)


def test_series_that_was_stopped_may_have_a_count_without_launches():
    scale = a_scale(BENDING)
    none = msgspec.structs.replace(scale.runs[4], launches=[], complete=False)
    figures = summarise_scale(msgspec.structs.replace(scale, runs=scale.runs | {4: none}))
    assert [bend.ranks for bend in figures.bends] == [2]


def test_counts_beyond_the_cores_enter_no_statement():
    figures = summarise_scale(a_scale(BENDING, cores=2))
    assert {point.ranks for point in figures.points if point.beyond_cores} == {4}
    assert [(bend.arm, bend.ranks) for bend in figures.bends] == [("ddp", 2)]
    assert figures.holds == {"mpi": 2}


@pytest.mark.parametrize(
    ("times", "cores", "unsettled"),
    [
        (BENDING, 1, {}),
        ({1: {"mpi": [4.0, 4.0, 4.0]}, 2: {"mpi": [4.0, 4.4, 5.0]}, 4: {"mpi": [4.0] * 3}}, 8, {"mpi": 2}),
        ({1: {"ddp": [4.0, 4.0]}, 2: {"ddp": [9.0, 9.0]}}, 8, None),
    ],
    ids=["no count within the cores", "an interval across the limit", "two rounds"],
)
def test_series_that_proves_nothing_states_nothing(times, cores, unsettled):
    figures = summarise_scale(a_scale(times, cores=cores))
    assert (figures.bends, figures.holds) == ([], {})
    assert unsettled is None or figures.unsettled == unsettled

"""Test the figures of one launch, the table of a run, and estimates against scipy."""

from __future__ import annotations

import math
import statistics

import msgspec
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from compare.analysis.figures import OTHER_LOAD_LIMIT, Estimate, Figures, LaunchFigures
from compare.analysis.ranking import log_ratios
from compare.schema.results import Block, Interleaved, MachineUse
from tests.unit.factories import a_block, a_launch, a_phased_block, a_rank, a_run


def of(ranks):
    """Return the figures of a launch of these ranks."""
    return LaunchFigures(a_launch(ranks=ranks))


def test_step_time_is_the_mean_over_ranks_and_blocks():
    figures = of([a_rank(0, milliseconds=[10, 20, 30]), a_rank(1, milliseconds=[12, 22, 100])])
    assert figures.step_seconds == pytest.approx(0.097 / 3)  # the mean of 11, 21 and 65 ms
    blocks = [Block(steps=n, wall_ns=n * 10_000_000, cpu_ns=0) for n in (30, 31)]
    assert of([a_rank(blocks=blocks)]).step_seconds == pytest.approx(0.010)


def test_step_time_excludes_blocks_with_phases_and_other_modes():
    blocks = [
        a_block(10),
        a_block(4, mode="reference"),
        a_phased_block("reference", forward=[500.0] * 30),
        a_phased_block(forward=[0.0] * 30, sync=[500.0] * 30),
    ]
    figures = of([a_rank(rank, blocks=blocks) for rank in range(2)])
    assert figures.step_seconds == pytest.approx(0.010)
    assert figures.reference_seconds == pytest.approx(0.004)
    assert of([a_rank()]).reference_seconds is None


def in_turns(*milliseconds):
    """Return a rank with two blocks of each turn."""
    return a_rank(blocks=[a_block(ms, turn=n) for n, ms in enumerate(milliseconds, 1) for _ in range(2)])


def test_step_time_is_the_geometric_mean_over_turns():
    assert of([in_turns(2.0, 8.0)]).step_seconds == pytest.approx(4e-3)
    assert [turn.seconds for turn in of([in_turns(2.0, 8.0)]).turns.values()] == pytest.approx([2e-3, 8e-3])


def test_ratio_of_two_arms_is_the_mean_ratio_of_their_turns():
    launches = [
        a_launch("ddp", ranks=[in_turns(4.0, 6.0, 9.0)]),
        a_launch("mpi", ranks=[in_turns(2.0, 5.0, 3.0)]),
    ]
    run = a_run({"ddp": [], "mpi": []}, interleaved=Interleaved(mode="blocks"), launches=launches)
    expected = sum(math.log(a / b) for a, b in [(4, 2), (6, 5), (9, 3)]) / 3
    assert log_ratios(Figures(run), "mpi", "ddp") == [pytest.approx(expected)]


def test_collectives_are_the_median_of_the_mean_over_ranks():
    ranks = [a_rank(0, collective_ns=[100, 300, 900]), a_rank(1, collective_ns=[300, 500, 1900])]
    assert of(ranks).collective_seconds == pytest.approx(400e-9)


def test_cores_per_rank_cover_the_training_alone():
    blocks = [
        a_block(10, cpu_ns=600_000_000),
        a_block(10, cpu_ns=300_000_000),
        a_block(10, mode="reference", cpu_ns=0),
        a_phased_block(forward=[10.0] * 30),
    ]
    figures = of([a_rank(rank, blocks=blocks) for rank in range(2)])
    assert figures.cores_per_rank == pytest.approx(1.5)  # 2 and 1 of 300 ms each


# ---- other CPU load ----


def on_host(host, rank, cpu_ms, busy_ms=None):
    """Return a rank of one second, perhaps with its host's load."""
    machine = None
    if busy_ms is not None:
        machine = MachineUse(wall_ns=10**9, cpus=2, busy_ns=round(busy_ms * 1e6), stolen_ns=0)
    return a_rank(rank, host=host, cpu_ns=round(cpu_ms * 1e6), machine=machine)


HOST_A = [on_host("a", 0, 900, busy_ms=1500), on_host("a", 1, 500)]
HOST_B = [on_host("b", 2, 100, busy_ms=1000), on_host("b", 3, 200)]


@pytest.mark.parametrize(
    ("ranks", "share"),
    [
        pytest.param(HOST_A, 0.05, id="100 of 2,000 ms"),
        pytest.param([*HOST_A, *HOST_B], 0.35, id="the busiest host"),
        pytest.param([*HOST_A, *HOST_B][::-1], 0.35, id="in any order"),
        pytest.param([on_host("a", 0, 900, busy_ms=890)], 0, id="the kernel counts whole ticks"),
        pytest.param([on_host("a", 0, 900)], 0, id="not measured"),
    ],
)
def test_other_cpu_load_is_the_hosts_load_without_its_ranks(ranks, share):
    assert of(ranks).other_cpu_load == pytest.approx(share)
    assert of(ranks).other_cores == pytest.approx(share * 2)


def test_other_cpu_load_counts_the_ranks_of_all_hosts_of_one_machine():
    ranks = []
    for number, (host, cpu_ms) in enumerate([("a", 900), ("b", 500)]):
        machine = MachineUse(wall_ns=10**9, cpus=2, busy_ns=15 * 10**8, stolen_ns=0, boot_id="one")
        ranks.append(a_rank(number, host=host, cpu_ns=cpu_ms * 10**6, machine=machine))
    assert of(ranks).other_cpu_load == pytest.approx(0.05)
    apart = [
        msgspec.structs.replace(rank, attestation={"affinity": [cpu, cpu + 1]})
        for rank, cpu in zip(ranks, (0, 2), strict=True)
    ]
    assert of(apart).other_cpu_load == pytest.approx(0.5), "two containers on other CPUs"


@pytest.mark.parametrize(("hosts", "other_cores"), [(["a", "b"], 0.1), (["a", "a"], 0.7)])
def test_packets_between_hosts_of_one_machine_are_not_other_load(hosts, other_cores):
    """At a low rate the kernel handles packets in interrupts for longer than the ranks compute."""
    use = MachineUse(
        wall_ns=10**9, cpus=2, busy_ns=11 * 10**8, processes_ns=5 * 10**8, stolen_ns=0, boot_id="one"
    )
    ranks = [a_rank(rank, host=host, cpu_ns=2 * 10**8, machine=use) for rank, host in enumerate(hosts)]
    assert of(ranks).other_cores == pytest.approx(other_cores)
    old = msgspec.structs.replace(use, processes_ns=None)
    ranks = [msgspec.structs.replace(rank, machine=old) for rank in ranks]
    assert of(ranks).other_cores == pytest.approx(0.7), "results of an older version"


@pytest.mark.parametrize(("busy", "noisy"), [(0, False), (199, False), (201, True), (2000, True)])
def test_launch_is_noisy_above_the_limit(busy, noisy):
    assert OTHER_LOAD_LIMIT == 0.10
    assert of([on_host("a", 0, 0, busy_ms=busy)]).is_noisy is noisy


# ---- estimates ----


@settings(deadline=None)
@given(st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=30))
def test_estimate_of_three_values_is_students_interval(values):
    estimate = Estimate.of(iter(values))
    # scipy has no interval of equal values, or of almost equal ones.
    assume(statistics.stdev(values) > max(1e-6 * max(map(abs, values)), 1e-100))
    low, high = scipy.stats.t.interval(
        0.95, len(values) - 1, loc=statistics.fmean(values), scale=scipy.stats.sem(values)
    )
    assert (estimate.n, estimate.method) == (len(values), "t")
    assert estimate.mean == statistics.fmean(values)
    assert (estimate.low, estimate.high) == pytest.approx((low, high), rel=1e-6)


@pytest.mark.parametrize("values", [[3.0], [3.0, 1.0]])
def test_estimate_of_one_or_two_values_is_a_range(values):
    expected = Estimate(statistics.fmean(values), min(values), max(values), len(values), "range")
    assert Estimate.of(values) == Estimate.of_any([None, *values, None]) == expected
    assert Estimate.of_any([None]) is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=1, max_size=9))
def test_estimate_geometric_mean_divides_as_its_values_do(pairs):
    first, second = (Estimate.geometric(values) for values in zip(*pairs, strict=True))
    quotient = Estimate.geometric(one / other for one, other in pairs)
    inverse = Estimate.geometric(other / one for one, other in pairs)
    assert quotient.mean == pytest.approx(first.mean / second.mean)
    assert (inverse.mean, inverse.low, inverse.high) == pytest.approx(
        (1 / quotient.mean, 1 / quotient.high, 1 / quotient.low)
    )
    assert 0 < first.low <= first.high


def test_estimate_quotient_has_both_intervals():
    first, second = Estimate(6.0, 4.0, 9.0, 5, "t"), Estimate(2.0, 1.6, 2.5, 4, "t")
    # The divisor alone gives 6/2.5 = 2.4 to 6/1.6 = 3.75, the dividend alone 4/2 to 9/2.
    quotient = first.over(second)
    assert (quotient.mean, quotient.n) == (3.0, 4)
    assert quotient.low == pytest.approx(3 - math.hypot(1, 0.6))
    assert quotient.high == pytest.approx(3 + math.hypot(1.5, 0.75))
    exact = Estimate(2.0, 2.0, 2.0, 4, "t")
    assert first.over(exact) == Estimate(3.0, 2.0, 4.5, 4, "t")
    below = Estimate(-6.0, -6.0, -6.0, 4, "t").over(second)
    assert (below.low, below.high) == (pytest.approx(-3.75), pytest.approx(-2.4))
    assert first.over(Estimate(2.0, 0.0, 4.0, 4, "t")).high == math.inf


def test_estimate_rest_and_scale_keep_the_interval():
    share = Estimate(0.25, 0.125, 0.5, 4, "t")
    assert share.rest() == Estimate(0.75, 0.5, 0.875, 4, "t")
    assert share.scaled(4) == Estimate(1.0, 0.5, 2.0, 4, "t")

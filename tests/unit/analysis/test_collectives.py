"""Test the figures of collectives alone."""

from __future__ import annotations

import pytest

from compare.analysis.collectives import all_reduce_factor, summarise_sweeps
from compare.schema.results import Failure
from tests.unit.collectives import a_collectives_run, a_sweep_config, a_sweep_launch


@pytest.mark.parametrize(("ranks", "factor"), [(1, 0.0), (2, 1.0), (4, 1.5), (8, 1.75)])
def test_all_reduce_factor_is_that_of_nccl_tests(ranks, factor):
    assert all_reduce_factor(ranks) == factor


def test_summarise_takes_the_slowest_rank_and_the_median():
    config = a_sweep_config("gloo", ranks=4, begin_bytes=1 << 20, end_bytes=1 << 20, rounds=2)
    launches = [a_sweep_launch(config, "gloo", number) for number in (1, 2)]
    (row,) = summarise_sweeps(a_collectives_run(config, launches))
    assert (row.count, row.dtype, row.operation) == (1 << 18, "float32", "sum")
    assert row.seconds.median == 8e-6, "rank 3 takes four times as long as rank 0"
    assert (row.seconds.minimum, row.seconds.n) == (4e-6, 6)
    assert row.seconds.low < row.seconds.median < row.seconds.high
    assert row.algorithm_bandwidth == pytest.approx((1 << 20) / 8e-6)
    assert row.bus_bandwidth == pytest.approx(1.5 * (1 << 20) / 8e-6)


def test_summarise_one_iteration_has_no_spread():
    config = a_sweep_config("gloo", end_bytes=8)
    (row,) = summarise_sweeps(a_collectives_run(config, [a_sweep_launch(config, "gloo", ns=[1000])]))
    assert row.seconds.share == 0


def test_summarise_adds_wrong_elements_of_all_ranks():
    config = a_sweep_config("gloo", "mpi")
    launches = [a_sweep_launch(config, "gloo", wrong=3), a_sweep_launch(config, "mpi")]
    run = a_collectives_run(config, launches)
    assert [row.wrong for row in summarise_sweeps(run)] == [6, 6, 0, 0]
    assert run.exit_code == 8


def test_summarise_keeps_every_reason_in_place_of_a_gap():
    config = a_sweep_config("gloo", "mpi", "horovod")
    failure = Failure(arm="mpi", round=1, kind="LaunchError", message="mpi, round 1: rank 1 died.")
    launches = [a_sweep_launch(config, "gloo", ns=[], refused="no room")]
    run = a_collectives_run(config, launches, failures=[failure], complete=False)
    problems = [row.problem for row in summarise_sweeps(run)]
    assert problems[:4] == ["no room"] * 2 + [failure.message] * 2
    statuses = [row.status for row in summarise_sweeps(run)]
    assert statuses == ["refused"] * 2 + ["failed"] * 2 + ["not run"] * 2
    assert run.exit_code == 6

"""Test which differences a run is likely to find, by simulation."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import nct, t

from compare.analysis.looks import FIRST_LOOK, Look
from compare.analysis.power import POWER, Power, find_power, plan_power, smallest_difference
from compare.analysis.summary import summarise
from compare.analysis.verdict import MARGIN, judge
from tests.unit.factories import a_launch, a_run

untimed = settings(deadline=None, max_examples=40)
RUNS = 400


def looks_until(planned, first=FIRST_LOOK):
    return [Look(rounds, planned) for rounds in range(first, planned + 1)]


def share_found(difference, spread, looks, arms):
    """Judge seeded runs in which one of the arms differs."""
    chance, found = np.random.default_rng(5), 0
    for _ in range(RUNS):
        ratios = chance.normal(0, spread, (arms, looks[-1].rounds))
        ratios[0] += math.log1p(difference)
        verdicts = judge({str(arm): own for arm, own in enumerate(ratios)}, looks, fewest=FIRST_LOOK)
        found += verdicts["0"].kind == "faster"
    return found / RUNS


ERROR = 4 * math.sqrt(POWER * (1 - POWER) / RUNS)


@pytest.mark.parametrize("arms", [1, 3])
@pytest.mark.parametrize(("rounds", "spread"), [(5, 0.05), (5, 0.3), (12, 0.1)])
def test_smallest_difference_is_found_in_80_of_100_runs(rounds, spread, arms):
    looks = [Look(rounds, rounds)]
    difference = smallest_difference(spread, looks, arms=arms)
    assert share_found(difference, spread, looks, arms) == pytest.approx(POWER, abs=ERROR)


@pytest.mark.parametrize(("spread", "most"), [(0.1, 0.95), (0.004, 1)])
def test_smallest_difference_is_found_more_often_by_several_looks(spread, most):
    looks = looks_until(9)
    difference = smallest_difference(spread, looks, arms=2)
    assert POWER - ERROR < share_found(difference, spread, looks, 2) <= most


@untimed
@given(st.integers(FIRST_LOOK, 40), st.integers(1, 8), st.floats(0.05, 0.3))
def test_smallest_difference_is_that_of_the_noncentral_t(rounds, arms, spread):
    """The sum of two central quantiles approximates it."""
    found = math.log1p(smallest_difference(spread, [Look(rounds, rounds)], arms=arms, margin=1e-9))
    critical = t.isf(0.05 / arms / 2, rounds - 1)
    exact = brentq(lambda nc: nct.sf(critical, rounds - 1, nc) - POWER, 0, 50)
    assert found * math.sqrt(rounds) / spread == pytest.approx(exact, rel=1e-6)
    assert exact == pytest.approx(critical + t.ppf(POWER, rounds - 1), rel=0.1)


@untimed
@given(st.integers(FIRST_LOOK, 30), st.integers(1, 8), st.floats(0, 0.5))
def test_smallest_difference_shrinks_with_rounds_and_grows_with_arms(rounds, arms, spread):
    def alone(rounds, arms, spread=spread):
        return smallest_difference(spread, [Look(rounds, rounds)], arms=arms)

    assert MARGIN <= alone(rounds + 1, arms) <= alone(rounds, arms) <= alone(rounds, arms + 1)
    assert alone(rounds, arms) <= alone(rounds, arms, spread + 0.01)
    assert alone(rounds, arms) <= smallest_difference(spread, looks_until(rounds), arms=arms)
    assert alone(rounds, arms, 0) == pytest.approx(MARGIN)


# ---- of a run ----

TIMES = {
    "none": [4.0] * 6,
    "ddp": [5.0, 5.2, 5.1, 5.0, 5.3, 5.1],
    "mpi": [6.0, 6.3, 5.9, 6.2, 6.1, 6.2],
    "manual": [5.0, 5.1, 5.0, 5.2, 5.0, 5.1],
}


def a_run_of(rounds, arms=tuple(TIMES), **changes):
    return a_run({arm: TIMES[arm][:rounds] for arm in arms}, **changes)


def pooled(rounds):
    logs = {arm: np.log(own[:rounds]) for arm, own in TIMES.items()}
    return math.sqrt(np.mean([np.var(logs["ddp"] - logs[arm], ddof=1) for arm in ("mpi", "manual")]))


@pytest.mark.parametrize(("rounds", "of"), [(2, 5), (4, 5), (5, 5), (6, 6)])
def test_find_power_pools_the_spread_of_the_compared_arms(rounds, of):
    difference = smallest_difference(pooled(rounds), [Look(of, of)], arms=2)
    assert find_power(a_run_of(rounds)) == Power(of, pytest.approx(difference))
    assert summarise(a_run_of(rounds)).power == find_power(a_run_of(rounds))


def test_plan_power_is_that_of_the_planned_rounds():
    exact = a_run_of(2, config={"rounds": 9})
    assert plan_power(exact) == Power(9, pytest.approx(smallest_difference(pooled(2), [Look(9, 9)], arms=2)))
    assert plan_power(a_run_of(2, config={"rounds": 3})).rounds == FIRST_LOOK
    clock = [
        a_launch(launch.arm, launch.round, ranks=launch.ranks, started_at=10.0 * number, seconds=10.0)
        for number, launch in enumerate(exact.launches)
    ]
    config = msgspec.structs.replace(exact.config, rounds=1000, settle_seconds=330.0)
    timed = msgspec.structs.replace(exact, launches=clock, config=config)
    assert plan_power(timed) == Power(
        8, pytest.approx(smallest_difference(pooled(2), looks_until(8), arms=2))
    )


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(a_run_of(1), id="one round has no spread"),
        pytest.param(a_run_of(5, ("none", "ddp")), id="no arm is compared"),
        pytest.param(a_run_of(5, cores=1), id="oversubscribed"),
        pytest.param(a_run_of(5, config={"comparisons": 1}), id="an A/A test"),
        pytest.param(a_run_of(0), id="no launch"),
    ],
)
def test_power_is_unknown_where_nothing_is_judged(run):
    assert find_power(run) is None
    assert plan_power(run) is None

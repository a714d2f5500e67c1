"""Test which differences a verdict would have found."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import nct, norm, t

from compare.analysis.looks import ALPHA, FIRST_LOOK
from compare.analysis.power import POWER, smallest_difference, would_have_seen
from compare.analysis.summary import summarise
from compare.analysis.verdict import MARGIN, judge
from tests.unit.factories import a_run

untimed = settings(deadline=None, max_examples=40)


def smallest(spread, rounds, arms, **changes):
    return smallest_difference(spread / math.sqrt(rounds), rounds, alpha=ALPHA / arms, **changes)


@untimed
@given(st.integers(FIRST_LOOK, 40), st.integers(1, 8), st.floats(0.05, 0.3))
def test_smallest_difference_is_that_of_the_noncentral_t(rounds, arms, spread):
    """The sum of two central quantiles approximates it."""
    found = math.log1p(smallest(spread, rounds, arms, margin=1e-9))
    critical = t.isf(ALPHA / arms / 2, rounds - 1)
    exact = brentq(lambda nc: nct.sf(critical, rounds - 1, nc) - POWER, 0, 50)
    assert found * math.sqrt(rounds) / spread == pytest.approx(exact, rel=1e-6)
    assert exact == pytest.approx(critical + t.ppf(POWER, rounds - 1), rel=0.1)
    beyond = math.log1p(MARGIN) + norm.ppf(POWER) * spread / math.sqrt(rounds)
    assert math.log1p(smallest(spread, rounds, arms)) == pytest.approx(max(found, beyond), rel=1e-6)


@untimed
@given(st.integers(FIRST_LOOK, 30), st.integers(1, 8), st.floats(0, 0.5))
def test_smallest_difference_shrinks_with_rounds_and_grows_with_arms(rounds, arms, spread):
    assert MARGIN <= smallest(spread, rounds + 1, arms) <= smallest(spread, rounds, arms)
    assert smallest(spread, rounds, arms) <= smallest(spread, rounds, arms + 1)
    assert smallest(spread, rounds, arms) <= smallest(spread + 0.01, rounds, arms)
    assert smallest(0, rounds, arms) == pytest.approx(MARGIN)


# ---- of a verdict ----


@untimed
@given(st.lists(st.floats(-0.2, 0.2), min_size=FIRST_LOOK, max_size=20), st.integers(1, 4))
def test_verdict_would_have_seen_by_its_own_spread_and_level(values, arms):
    others = {str(arm): [0.001 * (-1) ** i for i in range(len(values))] for arm in range(1, arms)}
    verdict = judge({"0": values, **others}, fewest=FIRST_LOOK)["0"]
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    own = smallest_difference(error, len(values), alpha=1 - verdict.level)
    assert would_have_seen(verdict) == pytest.approx(own, rel=1e-6, abs=1e-9)


TIMES = {
    "none": [4.0] * 6,
    "ddp": [5.0, 5.2, 5.1, 5.0, 5.3, 5.1],
    "mpi": [5.0, 5.6, 4.4, 5.9, 4.8, 5.3],
    "manual": [5.0, 5.1, 5.0, 5.2, 5.0, 5.1],
}


def seen_in(rounds=6, **changes):
    run = a_run({arm: times[:rounds] for arm, times in TIMES.items()}, **changes)
    return {arm.arm: arm.would_have_seen for arm in summarise(run).arms}


def test_noisier_arm_would_have_seen_less():
    seen = seen_in()
    assert seen["manual"] < seen["mpi"] / 3
    assert (seen["none"], seen["ddp"]) == (None, None)


@pytest.mark.parametrize("changes", [{"cores": 1}, {"rounds": 4}])
def test_nothing_would_have_been_seen_where_nothing_is_judged(changes):
    assert set(seen_in(**changes).values()) == {None}

"""Test estimates against scipy."""

from __future__ import annotations

import math
import statistics

import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from compare.analysis.estimate import Estimate


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



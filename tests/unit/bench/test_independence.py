"""Cohorts are independent, and a correlation would be found."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench.independence import RECORDS, describe, lag_1_of, of_record


@pytest.mark.parametrize(("after", "independent"), [(0.0, True), (0.5, False)])
def test_value_that_follows_the_one_before_is_found(after, independent):
    chance = np.random.default_rng(3)
    series = []
    for _ in range(40):
        own = [chance.normal()]
        for _ in range(11):
            own.append(after * own[-1] + chance.normal())
        series.append(np.array(own))
    found, shuffled = lag_1_of(series)
    low, high = np.quantile(shuffled, [0.025, 0.975])
    assert bool(low <= found <= high) == independent


def test_recorded_cohorts_are_as_independent_values():
    assert [path.name for path in RECORDS if not path.exists()] == []
    for path in RECORDS:
        for name, series in of_record(path).items():
            assert float(describe(series).partition(", p ")[2][:5]) > 0.001, name

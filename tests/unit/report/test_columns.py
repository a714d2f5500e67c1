"""Test the words of a verdict, and the one notation of ratios."""

import pytest

from compare.analysis.verdict import MARGIN, Verdict
from compare.report.cells import format_ratio
from compare.report.columns import describe_verdict, why_open


def a_verdict(kind, ratio, low, high, **changes):
    about = {"level": 0.95, "p": 0.01, "p_adjusted": 0.01, "n": 5, "margin": MARGIN, "rounds_to_settle": None}
    return Verdict(kind=kind, speed_ratio=ratio, low=low, high=high, **(about | changes))


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (a_verdict("faster", 3.9, 3.7, 4.1), "3.90× (3.70–4.10)"),
        (a_verdict("slower", 0.72, 0.68, 0.76), "0.72× (0.68–0.76)"),
        (a_verdict("faster", 1.058, 0.97, 1.16, n=14, settled_after=5), "1.06× (0.97–1.16) by round 5"),
        (a_verdict("slower", 0.9, 0.8, 0.95, n=14, settled_after=5), "0.90× (0.80–0.95)"),
        (a_verdict("same", 1.001, 0.98, 1.02), "1.00× (0.98–1.02) same"),
        (a_verdict("open", 1.02, 0.94, 1.11), "1.02× (0.94–1.11) open"),
        (a_verdict("open", 2.0, None, None, n=1), "2.00× open"),
    ],
)
def test_verdict_is_a_ratio_with_its_interval_and_a_word(found, text):
    assert describe_verdict(found) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.0123, "0.012×"),
        (0.1, "0.10×"),
        (9.99, "9.99×"),
        (9.999, "10×"),
        (123.4, "123×"),
        (45678.0, "45678×"),
    ],
)
def test_ratio_has_two_or_three_digits_and_no_exponent(ratio, text):
    assert format_ratio(ratio) == text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"uneven_load": (0.1, 0.9)}, "the load was uneven"),
        ({"n": 1}, "one round has no spread"),
        ({"rounds_to_settle": 1}, "about 1 more round would settle it"),
        ({"rounds_to_settle": 3}, "about 3 more rounds would settle it"),
        ({}, "more rounds would hardly settle it"),
    ],
)
def test_open_verdict_has_a_reason(changes, reason):
    assert why_open(a_verdict("open", 1.0, 0.9, 1.1, **changes)) == reason

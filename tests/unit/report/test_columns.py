"""Test the words of a verdict."""

import pytest

from compare.analysis.verdict import MARGIN, Verdict
from compare.report.columns import describe_verdict


def a_verdict(kind, ratio, low, high, **changes):
    about = {"level": 0.95, "p": 0.01, "p_adjusted": 0.01, "n": 5, "margin": MARGIN, "rounds_to_settle": None}
    return Verdict(kind=kind, speed_ratio=ratio, low=low, high=high, **(about | changes))


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (a_verdict("faster", 1.051, 1.02, 1.083), "5.1 % faster [2.0, 8.3]"),
        (a_verdict("faster", 3.04, 2.8, 3.2), "3.0× faster [2.8, 3.2]"),
        (a_verdict("slower", 1 / 1.051, 1 / 1.083, 1 / 1.02), "5.1 % slower [2.0, 8.3]"),
        (a_verdict("slower", 0.25, 0.2, 0.4), "4.0× slower [2.5, 5.0]"),
        (
            a_verdict("faster", 1.058, 0.97, 1.16, n=14, settled_after=5),
            "5.8 % faster [-3.0, 16] (by round 5)",
        ),
        (a_verdict("slower", 0.9, 0.8, 0.95, n=14, settled_after=5), "11 % slower [5.3, 25]"),
        (a_verdict("equivalent", 1.001, 0.99, 1.01), "equivalent within 3 %"),
        (
            a_verdict("unresolved", 1.0, 1 / 1.08, 1.08, rounds_to_settle=1),
            "unresolved: ±8.0 %, about 1 more round would settle it",
        ),
        (
            a_verdict("unresolved", 1.0, 0.1, 10, rounds_to_settle=3),
            "unresolved: a factor of 10 either way, about 3 more rounds would settle it",
        ),
        (a_verdict("unresolved", 2.0, None, None, n=1), "unresolved: one round has no spread"),
        (
            a_verdict("unresolved", 2.0, None, None, n=2, rounds_to_settle=4),
            "unresolved: about 4 more rounds would settle it",
        ),
    ],
)
def test_describe_verdict(found, text):
    assert describe_verdict(found) == text

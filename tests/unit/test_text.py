"""Numbers as people say them."""

import pytest

from compare.text import counted, numbered


@pytest.mark.parametrize(
    ("number", "said"), [(1, "1 round"), (2, "2 rounds"), (0, "0 rounds"), (1.5, "1.5 rounds")]
)
def test_a_noun_follows_its_number(number, said):
    assert counted(number, "round") == said


@pytest.mark.parametrize(
    ("numbers", "said"),
    [([3], "round 3"), ([1, 3], "rounds 1, 3"), ([1, 2, 3, 7, 9, 10], "rounds 1–3, 7, 9–10")],
)
def test_numbers_in_a_row_are_a_span(numbers, said):
    assert numbered("round", numbers) == said

"""Test the forms of collectives against counted bytes and simulated exchanges."""

from __future__ import annotations

import pytest

from compare.analysis.forms import FORMS, fitting

COUNTED = [
    ("all_reduce", 2, 1.00, 1.00, "ring"),
    ("all_reduce", 3, 1.34, 1.34, "ring"),
    ("all_reduce", 4, 1.50, 1.50, "ring"),
    ("reduce_scatter", 2, 1.00, 1.00, "ring all-reduce"),
    ("reduce_scatter", 3, 1.34, 1.34, "ring all-reduce"),
    ("reduce_scatter", 4, 1.50, 1.50, "ring all-reduce"),
    ("broadcast", 2, 1.00, 0.01, "binomial tree"),
    ("broadcast", 3, 2.00, 0.01, "binomial tree"),
    ("broadcast", 4, 2.00, 0.01, "binomial tree"),
    ("reduce", 4, 0.01, 3.00, "linear"),
    ("all_gather", 3, 0.67, 0.67, "ring"),
    ("all_to_all", 4, 0.75, 0.75, "pairwise"),
]
"""Bytes that the kernel counted of known libraries, over the message."""


@pytest.mark.parametrize(("collective", "n", "sent", "received", "form"), COUNTED)
def test_fitting_counted_bytes_names_the_true_form(collective, n, sent, received, form):
    assert form in [found.name for found in fitting(collective, n, sent, received, 0.05)]


@pytest.mark.parametrize(
    ("n", "sent", "received", "forms"),
    [
        (2, 1.00, 1.00, [form.name for form in FORMS["all_reduce"]]),
        (3, 1.34, 1.34, ["ring"]),
        (3, 2.50, 2.01, ["Rabenseifner"]),
        (4, 5.00, 5.00, []),
    ],
)
def test_fitting_an_all_reduce_names_all_one_or_none(n, sent, received, forms):
    assert [found.name for found in fitting("all_reduce", n, sent, received, 0.05)] == forms


def test_form_that_needs_a_power_of_two_fits_no_other_number():
    names = [[form.name for form in fitting("all_gather", n, 1 - 1 / n, 1 - 1 / n, 0.01)] for n in (3, 4)]
    assert "recursive doubling" not in names[0]
    assert "recursive doubling" in names[1]


AMONG = (2, 3, 4, 5, 6, 7, 8, 11)
SIMULATED = {
    ("all_reduce", "Rabenseifner"): (
        [1, 2.5, 1.5, 3, 3, 3, 1.75, 3.25],
        [1, 2, 1.5, 2.5, 2.5, 2.5, 1.75, 2.75],
    ),
    ("broadcast", "binomial tree"): ([1, 2, 2, 3, 3, 3, 3, 4], [0] * 8),
    ("all_to_all", "Bruck"): ([1 / 2, 2 / 3, 1, 1, 7 / 6, 9 / 7, 3 / 2, 17 / 11],) * 2,
}
"""What the busiest of so many ranks sends and receives, added up over the messages of each algorithm."""


@pytest.mark.parametrize(("collective", "name"), SIMULATED)
def test_form_among_any_number_has_the_bytes_of_its_messages(collective, name):
    (form,) = [form for form in FORMS[collective] if form.name == name]
    sent, received = SIMULATED[collective, name]
    assert [form.sent(n) for n in AMONG] == pytest.approx(sent)
    assert [form.received(n) for n in AMONG] == pytest.approx(received)

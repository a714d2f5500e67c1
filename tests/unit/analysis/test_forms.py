"""Test the forms of collectives against counted bytes and simulated exchanges."""

from __future__ import annotations

import pytest

from compare.analysis.forms import FORMS, fitting

COUNTED = [
    ("all_reduce", 2, 1.00, 1.00, "ring"),
    ("all_reduce", 3, 1.34, 1.34, "ring"),
    ("all_reduce", 4, 1.50, 1.50, "ring"),
    ("all_reduce", 2, 1.00, 1.00, "Rabenseifner"),
    ("all_reduce", 3, 2.50, 2.01, "Rabenseifner"),
    ("all_reduce", 4, 1.50, 1.50, "Rabenseifner"),
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


@pytest.mark.parametrize(("sent", "received", "form"), [(1.34, 1.34, "ring"), (2.50, 2.01, "Rabenseifner")])
def test_fitting_an_all_reduce_of_three_ranks_names_one(sent, received, form):
    assert [found.name for found in fitting("all_reduce", 3, sent, received, 0.05)] == [form]


def test_fitting_an_all_reduce_of_two_ranks_names_all():
    assert fitting("all_reduce", 2, 1.0, 1.0, 0.05) == list(FORMS["all_reduce"])


def test_fitting_bytes_of_no_form_names_none():
    assert fitting("all_reduce", 4, 5.0, 5.0, 0.05) == []


def test_form_that_needs_a_power_of_two_fits_no_other_number():
    names = [[form.name for form in fitting("all_gather", n, 1 - 1 / n, 1 - 1 / n, 0.01)] for n in (3, 4)]
    assert "recursive doubling" not in names[0]
    assert "recursive doubling" in names[1]


def busiest(messages):
    """Return what the busiest rank sends and receives, of (source, destination, share)."""
    ranks = {rank for source, destination, _ in messages for rank in (source, destination)}
    sent = {rank: sum(share for source, _, share in messages if source == rank) for rank in ranks}
    received = {rank: sum(share for _, to, share in messages if to == rank) for rank in ranks}
    most = max(ranks, key=lambda rank: sent[rank] + received[rank])
    return sent[most], received[most]


def rabenseifner(n):
    """Return the messages of Open MPI's all-reduce for large messages."""
    power = 1 << (n.bit_length() - 1)
    pairs = n - power
    messages = []
    for even in range(0, 2 * pairs, 2):
        messages += [(even, even + 1, 0.5), (even + 1, even, 0.5), (even + 1, even, 0.5), (even, even + 1, 1)]
    real = [2 * v if v < pairs else v + pairs for v in range(power)]
    share, distance = 0.5, 1
    while distance < power:
        messages += [(real[v], real[v ^ distance], share) for v in range(power) for _ in range(2)]
        share, distance = share / 2, distance * 2
    return messages


def binomial_broadcast(n):
    """Return the messages of a broadcast from rank 0."""
    messages, distance = [], 1
    while distance < n:
        messages += [(r, r + distance, 1) for r in range(min(distance, n - distance))]
        distance *= 2
    return messages


def bruck_all_to_all(n):
    """Return the messages of Bruck's all-to-all."""
    bits = range((n - 1).bit_length())
    blocks = {bit: sum(1 for i in range(n) if i >> bit & 1) for bit in bits}
    return [(r, (r + (1 << bit)) % n, blocks[bit] / n) for r in range(n) for bit in bits]


SIMULATED = [
    ("all_reduce", "Rabenseifner", rabenseifner),
    ("broadcast", "binomial tree", binomial_broadcast),
    ("all_to_all", "Bruck", bruck_all_to_all),
]


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8, 11])
@pytest.mark.parametrize(("collective", "name", "messages"), SIMULATED)
def test_form_among_any_number_has_the_bytes_of_its_messages(collective, name, messages, n):
    (form,) = [form for form in FORMS[collective] if form.name == name]
    assert (form.sent(n), form.received(n)) == pytest.approx(busiest(messages(n)))

"""Describe the forms of collectives by their rounds and bytes.

A form is an algorithm that a library may use. The bytes of its busiest rank tell it from other forms, even if
the network is slow or noisy. Bytes are relative to the message, with the size conventions of nccl-tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

FORM_FROM_BYTES = 64 << 10
"""A message shows its form from this size on, because headers and negotiation outweigh smaller ones."""
OfRanks: TypeAlias = Callable[[int], float]
"""Maps a number of ranks, 2 or more, to a figure."""


@dataclass(frozen=True, slots=True)
class Form:
    """An algorithm of a collective, with figures of its busiest rank.

    The busiest rank is the one with the largest sum of sent and received bytes.
    """

    name: str
    rounds: OfRanks
    """Number of transfers that wait for each other, if the message is not divided into segments."""
    sent: OfRanks
    """Bytes that the busiest rank sends, over those of the message."""
    received: OfRanks
    """Bytes that the busiest rank receives, over those of the message."""
    exists: Callable[[int], bool] = lambda n: n > 1
    """Whether n ranks can use the algorithm."""


def fitting(collective: str, n: int, sent: float, received: float, tolerance: float) -> list[Form]:
    """Return the forms whose bytes agree with the counted ones.

    Args:
        collective: a key of ``FORMS``.
        n: the number of ranks, with one rank on each host.
        sent: counted bytes that the busiest host sent, over those of the message.
        received: counted bytes that the busiest host received, over those of the message.
        tolerance: the largest difference of either count, relative to the larger of the form's two figures.
    """
    found = []
    for form in FORMS[collective]:
        expected = form.sent(n), form.received(n)
        # The quieter direction carries acknowledgements, so its limit is not relative to its own bytes.
        limit = tolerance * max(expected)
        fits = abs(sent - expected[0]) <= limit and abs(received - expected[1]) <= limit
        if form.exists(n) and fits:
            found.append(form)
    return found


def halvings(n: int) -> int:
    """Return log2 of the largest power of two that is at most n."""
    return n.bit_length() - 1


def doublings(n: int) -> int:
    """Return log2 of n, rounded up."""
    return (n - 1).bit_length()


def others(n: int) -> float:
    """Return the share of the message that belongs to the other ranks, (n - 1) / n."""
    return (n - 1) / n


def _is_power_of_two(n: int) -> bool:
    return n > 1 and n.bit_count() == 1


def _folds(n: int) -> int:
    """Return 1 if n is no power of two, because the ranks beyond one then fold into others; else 0."""
    return 0 if _is_power_of_two(n) else 1


def _halving(n: int) -> float:
    """Return the share of the message that halving exchanges among the largest power of two of ranks."""
    return others(1 << halvings(n))


def _bruck(n: int) -> float:
    """Return the bytes that a rank sends in Bruck's all-to-all, over those of the message.

    Block i moves once for each bit that is set in i.
    """
    return sum(i.bit_count() for i in range(n)) / n


def _beyond_two(n: int) -> int:
    """Return 1 if a chain of n ranks has a rank that both receives and sends, else 0."""
    return 1 if n > 2 else 0  # noqa: PLR2004 -- the first and the last do not


FORMS: dict[str, tuple[Form, ...]] = {
    "all_reduce": (
        Form("ring", lambda n: 2 * (n - 1), lambda n: 2 * others(n), lambda n: 2 * others(n)),
        Form(
            "recursive doubling",
            lambda n: halvings(n) + 2 * _folds(n),
            lambda n: halvings(n) + _folds(n),
            lambda n: halvings(n) + _folds(n),
        ),
        # Open MPI folds by halves (coll_base_allreduce.c). Two ranks exchange halves. One of them gets both
        # sums, takes part for both, and returns the whole result.
        Form(
            "Rabenseifner",
            lambda n: 2 * halvings(n) + 3 * _folds(n),
            lambda n: 2 * _halving(n) + 1.5 * _folds(n),
            lambda n: 2 * _halving(n) + _folds(n),
        ),
        Form("binomial tree", lambda n: 2 * doublings(n), doublings, doublings),
        Form("linear", lambda _: 2, lambda n: n - 1, lambda n: n - 1),
    ),
    "all_gather": (
        Form("ring", lambda n: n - 1, others, others),
        Form("recursive doubling", halvings, others, others, _is_power_of_two),
        Form("Bruck", doublings, others, others),
        Form("neighbour exchange", lambda n: n / 2, others, others, lambda n: n % 2 == 0),
        Form("linear", lambda _: 1, others, others),
        Form("gather and binomial tree", lambda n: 1 + doublings(n), doublings, others),
    ),
    "reduce_scatter": (
        Form("ring", lambda n: n - 1, others, others),
        Form("recursive halving", halvings, others, others, _is_power_of_two),
        Form("pairwise", lambda n: n - 1, others, others),
        Form("ring all-reduce", lambda n: 2 * (n - 1), lambda n: 2 * others(n), lambda n: 2 * others(n)),
        Form("binomial tree and scatter", lambda n: 1 + doublings(n), others, doublings),
        Form("linear and scatter", lambda _: 2, others, lambda n: n - 1),
    ),
    "broadcast": (
        Form("binomial tree", doublings, doublings, lambda _: 0),
        Form("chain", lambda n: n - 1, lambda _: 1, _beyond_two),
        Form("scatter and ring", lambda n: doublings(n) + n - 1, lambda n: 2 * others(n), others),
        Form("linear", lambda _: 1, lambda n: n - 1, lambda _: 0),
    ),
    "reduce": (
        Form("binomial tree", doublings, lambda _: 0, doublings),
        Form("chain", lambda n: n - 1, _beyond_two, lambda _: 1),
        Form("reduce-scatter and gather", lambda n: n, others, lambda n: 2 * others(n)),
        Form("linear", lambda _: 1, lambda _: 0, lambda n: n - 1),
    ),
    "all_to_all": (
        Form("pairwise", lambda n: n - 1, others, others),
        Form("linear", lambda _: 1, others, others),
        Form("Bruck", doublings, _bruck, _bruck),
    ),
    "send_recv": (Form("direct", lambda _: 1, lambda _: 1, lambda _: 1),),
    "barrier": (Form("dissemination", doublings, lambda _: 0, lambda _: 0),),
}
"""The known forms of each collective, by its name."""

"""Describe the forms of collectives by their rounds and bytes.

A form is an algorithm that a library may use. The bytes of its busiest rank tell it from others, however slow
or noisy the network is. All shares are of the message, by the size conventions of nccl-tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

OfRanks: TypeAlias = Callable[[int], float]
"""A figure among n ranks, for n of 2 or more."""


@dataclass(frozen=True, slots=True)
class Form:
    """An algorithm of a collective, with figures of its busiest rank.

    The busiest rank is the one that sends and receives most bytes together.
    """

    name: str
    rounds: OfRanks
    """Messages that wait for each other, for a message in one piece."""
    sent: OfRanks
    """Bytes that the busiest rank sends, over the message."""
    received: OfRanks
    """Bytes that it receives, over the message."""
    exists: Callable[[int], bool] = lambda n: n > 1
    """Whether there is such an algorithm among n ranks."""


def fitting(collective: str, n: int, sent: float, received: float, tolerance: float) -> list[Form]:
    """Return the forms whose bytes agree with the counted ones.

    Args:
        collective: a key of ``FORMS``.
        n: the ranks, one on each host.
        sent: counted bytes that the busiest host sent, over the message.
        received: likewise received.
        tolerance: the largest difference in either direction, relative to the form's larger one.
    """
    return [
        form
        for form in FORMS[collective]
        if form.exists(n) and _is_near(form.sent(n), form.received(n), sent, received, tolerance)
    ]


def _is_near(sent: float, received: float, counted_sent: float, counted_received: float, by: float) -> bool:
    # The other direction carries acknowledgements, so its limit is not relative to itself.
    limit = by * max(sent, received)
    return abs(counted_sent - sent) <= limit and abs(counted_received - received) <= limit


def halvings(n: int) -> int:
    """Return log2 of the largest power of two within n."""
    return n.bit_length() - 1


def doublings(n: int) -> int:
    """Return log2 of n, rounded up."""
    return (n - 1).bit_length()


def others(n: int) -> float:
    """Return the share of the message that is not a rank's own."""
    return (n - 1) / n


def _is_power_of_two(n: int) -> bool:
    return n > 1 and n.bit_count() == 1


def _is_even(n: int) -> bool:
    return n > 1 and n % 2 == 0


def _folds(n: int) -> int:
    """Return 1 where ranks beyond a power of two fold into others."""
    return 0 if _is_power_of_two(n) else 1


def _halving(n: int) -> float:
    """Return the share exchanged by halving within the largest power of two."""
    return others(1 << halvings(n))


def _bruck(n: int) -> float:
    """Return the share that Bruck's all-to-all sends.

    Block i moves once for each bit that is set in i.
    """
    return sum(i.bit_count() for i in range(n)) / n


def _beyond_two(n: int) -> int:
    """Return 1 where some rank of a chain receives and sends."""
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
        Form("neighbour exchange", lambda n: n / 2, others, others, _is_even),
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
"""The forms that are known, by collective."""

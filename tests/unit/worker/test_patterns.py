"""Test the data of collectives and their right results."""

from __future__ import annotations

import pytest
import torch

from compare.schema.collectives import COLLECTIVES, NONE, OPERATIONS, Exchange
from compare.worker.patterns import Pattern

# Other dtypes differ in no line of the code that makes the data.
DTYPES_TRIED = ("int8", "uint64", "float16", "float32", "bfloat16", "float8_e4m3fn", "float8_e5m2")
EXCHANGES = [
    Exchange(name, dtype, operation)
    for name, traits in COLLECTIVES.items()
    if not traits.empty
    for dtype in DTYPES_TRIED
    for operation in (OPERATIONS if traits.reduces else (NONE,))
]
ELEMENTS = 600


def given(exchange, ranks, rank, elements):
    dtype = getattr(torch, exchange.dtype)
    return Pattern(exchange, ranks).data_of(rank, torch.empty(elements, dtype=dtype))


def carried_out(exchange, ranks, rank):
    """Return a right library's result, in double precision."""
    parts = [given(exchange, ranks, r, ELEMENTS * ranks).double() for r in range(ranks)]
    first = [part[:ELEMENTS] for part in parts]
    own = slice(rank * ELEMENTS, (rank + 1) * ELEMENTS)
    if exchange.traits.reduces:
        its = torch.stack([part[own] for part in parts] if exchange.traits.divided else first)
        by = {
            "sum": its.sum(0),
            "prod": its.prod(0),
            "min": its.amin(0),
            "max": its.amax(0),
            "avg": its.mean(0),
        }
        found = by[exchange.operation]
    else:
        found = {
            "all_gather": torch.cat(first),
            "broadcast": first[0],
            "all_to_all": torch.cat([part[own] for part in parts]),
            "send_recv": first[rank - 1],
        }[exchange.collective]
    return found.to(getattr(torch, exchange.dtype))


@pytest.mark.parametrize("exchange", EXCHANGES, ids=str)
def test_pattern_right_result_is_exact_and_no_other_is(exchange):
    for ranks in (2, 3, 7):
        pattern = Pattern(exchange, ranks)
        for rank in {0, ranks - 1} if exchange.root < 0 else {0}:
            right = carried_out(exchange, ranks, rank)
            assert pattern.count_wrong(right, rank) == 0
            shifted = right.view(torch.uint8).view(-1, right.itemsize).roll(1, 0).flatten().view(right.dtype)
            assert pattern.count_wrong(shifted, rank) > right.numel() / 20
        assert len({tuple(given(exchange, ranks, r, 251).double().tolist()) for r in range(ranks)}) == ranks


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "int8"])
def test_pattern_sums_of_many_ranks_stay_exact(dtype):
    exchange, ranks = Exchange("all_reduce", dtype, "sum"), 600
    right = carried_out(exchange, ranks, 0)
    assert Pattern(exchange, ranks).count_wrong(right, 0) == 0
    assert right.double().max() > 0


@pytest.mark.parametrize("ranks", [64, 100])
def test_pattern_mean_of_many_ranks_fits_into_a_byte(ranks):
    """The library adds in the dtype before it divides."""
    exchange = Exchange("all_reduce", "int8", "avg")
    total = sum(given(exchange, ranks, rank, 251).long() for rank in range(ranks))
    assert total.max() <= 127
    mean = (total // ranks).to(torch.int8)
    assert mean.any()
    assert Pattern(exchange, ranks).count_wrong(mean, 0) == 0


def test_pattern_counts_a_nan_where_a_mean_may_be_rounded():
    exchange, ranks = Exchange("all_reduce", "float32", "avg"), 3
    mean = carried_out(exchange, ranks, 0)
    mean[5] = float("nan")
    assert Pattern(exchange, ranks).count_wrong(mean, 0) == 1

"""Whether the state that is put back has room."""

from __future__ import annotations

import pytest

from compare.meter.facts import find_shortage
from compare.schema.metered import MeteredRank

MB = 10**6


@pytest.mark.parametrize(
    ("places", "free", "says"),
    [
        ([("a", "cpu")], [120], ""),
        ([("a", "cpu")], [119], "Rank 0 on a cannot keep what is put back: it has 100 MB, and 119 MB"),
        ([("a", "cpu")] * 4, [480] * 4, ""),
        ([("a", "cpu")] * 4, [490, 470, 490, 490], "Rank 0 on a with 3 other ranks cannot keep"),
        ([("a", "cpu"), ("b", "cpu"), ("b", "cpu")], [130, 200, 200], "Rank 1 on b with 1 other rank"),
        ([("a", "cuda:0")] * 2, [130, 130], ""),
        ([("a", "cuda:0"), ("a", "cuda:1")], [130, 110], "Rank 1 on a cannot keep"),
    ],
)
def test_ranks_of_a_host_share_its_memory(places, free, says):
    ranks = [
        MeteredRank(rank=number, host=host, pid=1, device=device, threads=1, kept_bytes=100 * MB)
        for number, (host, device) in enumerate(places)
    ]
    found = find_shortage([(rank, one * MB) for rank, one in zip(ranks, free, strict=True)])
    assert found.startswith(says)
    assert bool(found) is bool(says)

"""Find the parity passes of ranks, or those of a launch that they repeat bit for bit."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from compare.schema.parity import ParityPass, PassKind
from compare.schema.results import Launch, RankResult


def pass_of(rank: RankResult, kind: PassKind) -> ParityPass | None:
    """Return a rank's pass of one kind; None without one."""
    return next((taken for taken in rank.parity if taken.kind == kind), None)


def with_passes(ranks: list[RankResult], launches: Iterable[Launch]) -> list[RankResult]:
    """Return ranks with the passes of a launch that they repeat, unless they have passes of their own.

    Ranks repeat a launch if each began and ended as the same rank of that launch did, bit for bit, because
    then both computed the same. Ranks that have passes, or repeat none of ``launches``, are returned as they
    are.
    """
    found = [rank.fingerprint for rank in ranks]
    if None in found or any(rank.parity for rank in ranks):
        return ranks
    for launch in launches:
        proven = launch.ranks
        if all(rank.parity for rank in proven) and [rank.fingerprint for rank in proven] == found:
            return [
                msgspec.structs.replace(rank, parity=of.parity)
                for rank, of in zip(ranks, proven, strict=True)
            ]
    return ranks

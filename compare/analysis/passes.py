"""Find the passes of a rank, or those of the launch that it repeats."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from compare.schema.parity import ParityPass, PassKind
from compare.schema.results import Launch, RankResult


def pass_of(rank: RankResult, kind: PassKind) -> ParityPass | None:
    """Return a rank's pass of one kind, if there is one."""
    return next((taken for taken in rank.parity if taken.kind == kind), None)


def with_passes(ranks: list[RankResult], launches: Iterable[Launch]) -> list[RankResult]:
    """Give ranks without passes those of a launch that they repeat.

    All ranks of both began and ended alike, bit for bit. So they computed the same. Ranks that repeat none of
    the ``launches`` stay without.
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

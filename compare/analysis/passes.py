"""Find the passes of a rank."""

from __future__ import annotations

from compare.schema.parity import ParityPass, PassKind
from compare.schema.results import RankResult


def pass_of(rank: RankResult, kind: PassKind) -> ParityPass | None:
    """Return a rank's pass of one kind, if there is one."""
    return next((taken for taken in rank.parity if taken.kind == kind), None)

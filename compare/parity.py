"""The same training, or it is no comparison: what the ranks of a launch must have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compare.errors import ParityError

if TYPE_CHECKING:
    from compare.arms import Arm
    from compare.results import RankResult


def check_launch(arm: Arm, ranks: list[RankResult]) -> None:
    """Hold the ranks of one launch against each other.

    Ranks must start from the same parameters, end with bitwise the same ones, and have moved. The
    control is exempt from the second by declaration: its ranks train apart.

    Raises:
        ParityError: naming the ranks that differ.
    """
    _require_one(
        {r.rank: r.initial_hash for r in ranks}, f"{arm.label}: the ranks did not start from one model."
    )
    for result in ranks:
        if result.final_hash == result.initial_hash:
            raise ParityError(
                f"{arm.label}: rank {result.rank} on {result.host} never trained.",
                found="Its parameters at the end are bitwise those of the start.",
                remedy="The strategy's step does not reach the parameters; this launch proves nothing.",
            )
    if arm.synchronises:
        _require_one(
            {r.rank: r.final_hash for r in ranks}, f"{arm.label}: the ranks ended with different models."
        )


def _require_one(hashes: dict[int, str], what: str) -> None:
    if len(set(hashes.values())) > 1:
        raise ParityError(
            what,
            found="SHA-256 of the parameters: "
            + ", ".join(f"rank {r} {h[:12]}" for r, h in hashes.items())
            + ".",
            remedy="Gradients are not the mean over all ranks; the speed of this arm means nothing.",
        )

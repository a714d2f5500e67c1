"""Say what a proof leaves open, because a wrong step would have passed as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from compare.schema.arms import Arm
from compare.schema.parity import ParityPass
from compare.text import counted

_SHOWN = 3
"""Names in a list; the others are counted."""
_ANOTHER_LOSS = 1e-6
"""Distance of the combined batch's gradient from the mean that no rounding makes."""


class Nothing(NamedTuple):
    """Why nothing is proven, and what would let it be."""

    what: str
    remedy: str


def nothing_proven(arm: Arm, ranks: int, taken: ParityPass) -> Nothing | None:
    """Return why a passed proof is empty; None if it tells something apart.

    Results without these figures are taken as they were.
    """
    if not taken.trainable:
        return None
    untold = {kind: len(names) == taken.trainable for kind, names in taken.untold.items()}
    if untold.get("none"):
        return Nothing(
            f"no parameter moves in {taken.steps} steps: every gradient is zero, or the learning rate is",
            "Does the loss depend on the data and on the model? Are the inputs zero?",
        )
    if not arm.traits.communicates:
        return None
    if ranks == 1:
        return Nothing("one rank synchronises nothing", "Take two ranks or more: -np 2.")
    if untold.get("alone"):
        return Nothing(
            "each rank's own gradient is already the mean, so a step without communication would pass",
            "Do all ranks get the same samples, or does the loss not depend on them?",
        )
    return None


def left_open(taken: ParityPass) -> Iterator[str]:
    """Name the parameters, and what else, that a passed proof tells nothing about."""
    still = set(taken.untold.get("none", []))
    alone = [name for name in taken.untold.get("alone", []) if name not in still]
    sums = [name for name in taken.untold.get("sum", []) if name not in still and name not in alone]
    if still:
        yield f"not proven, because their gradients are zero: {shortened(sorted(still))}"
    if alone:
        yield f"not told apart from one rank alone: {shortened(alone)}"
    if sums:
        yield f"not told apart from a sum in place of the mean: {shortened(sums)}"
    if taken.acted and not any(taken.acted):
        yield "before_step changed no gradient, so what it does is not proven"
    if taken.combined is not None and taken.combined > _ANOTHER_LOSS:
        yield (
            f"the mean over the ranks is {taken.combined:.2g} of its size away from the gradient of the "
            "combined batch, as with a mean per token or a summed loss"
        )


def shortened(names: Sequence[str]) -> str:
    """List some names, and count the others."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {counted(more, 'other')}" if more > 0 else "")

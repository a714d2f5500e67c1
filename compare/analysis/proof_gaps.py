"""Describe what a parity proof leaves open because a wrong step would have passed as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from compare.schema.arms import Arm
from compare.schema.parity import ParityPass
from compare.text import counted

_SHOWN = 3
"""Number of names that a list shows; the others are only counted."""
_ANOTHER_LOSS = 1e-6
"""Largest relative distance of the combined batch's gradient from the mean that rounding can explain."""


class Nothing(NamedTuple):
    """Why a proof shows nothing, and what the user can do."""

    what: str
    remedy: str


def nothing_proven(arm: Arm, ranks: int, taken: ParityPass) -> Nothing | None:
    """Return why a passed proof shows nothing; None if it shows something.

    Older results do not record which wrong steps they tell apart, so they count as showing something.
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
    """Yield what a passed proof leaves open, as phrases: parameters, ``before_step``, the kind of loss."""
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
    """Return the first names, joined by commas, and the number of the others."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {counted(more, 'other')}" if more > 0 else "")

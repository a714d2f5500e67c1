"""State what a passed proof leaves open: the errors with which a step would have passed as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compare.schema.arms import Arm
from compare.schema.parity import ParityPass, WrongKind
from compare.text import counted

_SHOWN_NAMES = 3
"""A list shows this number of names, and counts the others."""
_MEAN_TOLERANCE = 1e-6
"""Rounding explains no larger distance of the combined batch's gradient from the ranks' mean, as a share."""


def why_nothing_proven(arm: Arm, ranks: int, proof: ParityPass) -> tuple[str, str] | None:
    """Return why a passed proof proves nothing, and what the user can do; None if it proves something.

    Older results do not record which wrong steps would pass as well, so they count as proving something.
    """
    if not proof.trainable:
        return None
    untold = {kind: len(names) == proof.trainable for kind, names in proof.untold.items()}
    if untold.get("none"):
        return (
            f"no parameter moves in {proof.steps} steps: every gradient is zero, or the learning rate is",
            "Does the loss depend on the data and on the model? Are the inputs zero?",
        )
    if not arm.traits.communicates:
        return None
    if ranks == 1:
        return "one rank synchronises nothing", "Take two ranks or more: -np 2."
    if untold.get("alone"):
        return (
            "each rank's own gradient is already the mean, so a step without communication would pass",
            "Do all ranks get the same samples, or does the loss not depend on them?",
        )
    return None


def open_points(proof: ParityPass, exact: ParityPass | None = None) -> Iterator[str]:
    """Yield a phrase for each point that a passed proof leaves open.

    A point is a list of parameters, the user's ``before_step``, or a loss that is not a mean over samples.
    ``exact`` is the float64 pass of the same launch, which may show a wrong step that ``proof`` does not.
    """
    unmoved = set(proof.untold.get("none", []))
    alone = [name for name in proof.untold.get("alone", []) if name not in unmoved]
    sums = [name for name in proof.untold.get("sum", []) if name not in unmoved and name not in alone]
    if unmoved:
        yield f"not proven, because their gradients are zero: {shorten(sorted(unmoved))}"
    if alone:
        yield f"a step without communication would {_passes(proof, 'alone', alone, exact)}: {shorten(alone)}"
    if sums:
        yield f"a sum in place of the mean would {_passes(proof, 'sum', sums, exact)}: {shorten(sums)}"
    if proof.shard_of_rank:
        yield (
            f"{proof.summands} ranks took {proof.shards} different batches, so a gradient in place of "
            "another of the same batch would pass"
        )
    if proof.acted and not any(proof.acted):
        yield "before_step changed no gradient, so what it does is not proven"
    if proof.combined is not None and proof.combined > _MEAN_TOLERANCE:
        yield (
            f"the mean over the ranks is {proof.combined:.2g} of its size away from the gradient of the "
            "combined batch, as with a mean per token or a summed loss"
        )


def _passes(proof: ParityPass, kind: WrongKind, names: Sequence[str], exact: ParityPass | None) -> str:
    """Return a phrase on a wrong step that ``proof`` would not show with parameters, and ``exact`` may."""
    passes = "pass as well with these parameters"
    if exact is None or exact is proof or not (exact.trainable and exact.is_exact):
        return passes
    is_shown = not set(names) & set(exact.untold.get(kind, []))
    return f"{passes} in {proof.kind}, but not in float64" if is_shown else passes


def shorten(names: Sequence[str]) -> str:
    """Return the first three names, joined by commas, and the number of the others."""
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {counted(more, 'other')}" if more > 0 else "")

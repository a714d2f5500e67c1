"""Find what a wrong step consists of: gradients of shards, the previous update, or rounding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from compare.schema.parity import WrongStep

MOST_EXPLAINED = 30_000_000
"""Most numbers in the vectors of a step that is explained; with copies they take 800 MB."""
_ROUNDED = 2.0**-7
"""Largest relative error of a number that was rounded to bfloat16, or of a sum of two such numbers."""
_LEAST_HALF = 2.0**-24
"""The smallest number above zero that float16 can hold."""
_NEAR = 2.0**-8
"""Largest error of a share that rounding alone makes, because few numbers may dominate a gradient."""
_EXACT = 1e-9
"""Largest relative error of a number that was not rounded to half precision."""
_MOST = 0.5
"""Least part of the numbers that is inexact in a rounded step.

Also the least part of its error that the shares leave unexplained.
"""


class Taken(NamedTuple):
    """A step of an arm and of the reference, as float64 vectors over all parameters.

    Updates are divided by the learning rate, so they have the unit of a gradient.
    """

    update: torch.Tensor
    """The arm's update."""
    right: torch.Tensor
    """The reference's update."""
    shards: torch.Tensor
    """The gradient of each shard, shape (shards, numbers)."""
    before: torch.Tensor | None
    """The update of the previous step; None in the first step."""


def explain(wrong: WrongStep, taken: Taken) -> WrongStep:
    """Return a wrong step, with the parts of each shard's gradient and of the previous update in it.

    The parts are those whose sum is nearest to the step, by least squares. If the mean gradient is zero,
    ``wrong`` is returned unchanged.
    """
    mean, count = taken.shards.mean(0), len(taken.shards)
    if not mean.any():  # nothing to be a share of
        return wrong
    parts = taken.shards if taken.before is None else torch.cat([taken.shards, taken.before[None]])
    shares = torch.linalg.lstsq(parts @ parts.T, (parts @ taken.update)[:, None], driver="gelsd").solution[
        :, 0
    ]
    rest = taken.update - shares @ parts
    return WrongStep(
        step=wrong.step,
        parameter=wrong.parameter,
        difference=wrong.difference,
        shares=(shares[:count] * count).tolist(),
        left_over=float(shares[count]) if taken.before is not None else 0.0,
        unexplained=float(rest.norm() / taken.update.norm()) if taken.update.any() else 0.0,
        kept=float(taken.right @ mean / (mean @ mean)),
        rounded=_is_rounded(taken, shares[:count] * count, rest),
    )


def _is_rounded(taken: Taken, shares: torch.Tensor, rest: torch.Tensor) -> bool:
    """Return whether rounding to half precision, in transport or in the sum, explains all errors.

    Other small errors look different. Something that is added, such as weight decay, does not follow the size
    of each number. A factor or a share that is slightly wrong does, but then the shares explain the whole
    error. If a single parameter is wrong, all others are exact.
    """
    error, size = (taken.update - taken.right).abs(), taken.right.abs()
    allowed = _ROUNDED * taken.shards.abs().mean(0) + _LEAST_HALF
    if not bool((error <= allowed).all()) or not bool(((shares - 1).abs() < _NEAR).all()):
        return False
    inexact = (error > _EXACT * size)[size > 0].double().mean()
    return bool(inexact > _MOST) and bool(rest.norm() > _MOST * error.norm())


def joined(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return tensors as one float64 vector on the CPU; a complex number becomes two numbers."""
    flat = [tensor.detach().flatten() for tensor in tensors]
    real = [torch.view_as_real(one).flatten() if one.is_complex() else one for one in flat]
    return torch.cat([one.double().cpu() for one in real])

"""Find what a wrong step consists of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from compare.schema.parity import WrongStep

MOST_EXPLAINED = 30_000_000
"""Most numbers in the gradients of all shards; 800 MB with copies."""
_ROUNDED = 2.0**-7
"""Largest relative error of a number in bfloat16, and of a sum of two such."""
_LEAST_HALF = 2.0**-24
"""The smallest number above zero that float16 can hold."""
_NEAR = 2.0**-8
"""Largest error of a share where only rounding made it: few numbers may dominate a gradient."""
_EXACT = 1e-9
"""Largest relative error of a number that was not rounded to half precision."""
_MOST = 0.5
"""Part of the numbers that are rounded at least, and of their error that no wrong share explains."""


class Taken(NamedTuple):
    """A step as it was taken, each part as one vector, over the learning rate."""

    update: torch.Tensor
    """The update that was found."""
    right: torch.Tensor
    """The right one."""
    shards: torch.Tensor
    """The gradient of each shard, one row each."""
    before: torch.Tensor | None
    """The update of the step before; None in the first."""


def explain(wrong: WrongStep, taken: Taken) -> WrongStep:
    """Find how much of each shard's gradient is in a step, and of the step before.

    The step is a least-squares sum of them.
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
    """Return whether each number is right except for half precision, on its way or in its sum.

    Something small that is added, such as weight decay, does not follow the size of each number. A factor or
    a share that is a little wrong does, but it leaves no rest. One parameter that is wrong leaves all others
    exact.
    """
    error, size = (taken.update - taken.right).abs(), taken.right.abs()
    allowed = _ROUNDED * taken.shards.abs().mean(0) + _LEAST_HALF
    if not bool((error <= allowed).all()) or not bool(((shares - 1).abs() < _NEAR).all()):
        return False
    inexact = (error > _EXACT * size)[size > 0].double().mean()
    return bool(inexact > _MOST) and bool(rest.norm() > _MOST * error.norm())


def joined(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return tensors as one vector of real numbers, in float64."""
    flat = [tensor.detach().flatten() for tensor in tensors]
    real = [torch.view_as_real(one).flatten() if one.is_complex() else one for one in flat]
    return torch.cat([one.double().cpu() for one in real])

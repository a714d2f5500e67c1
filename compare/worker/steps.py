"""Record a training step, measure how far apart two steps or models are, and explain a wrong step.

A wrong step consists of gradients of shards, of the previous update, and of rounding. ``explain`` finds how
much of each. Hooks of torch record what the optimizers do in a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

MOST_EXPLAINED = 30_000_000
"""Maximum number of elements in all vectors that explain a step; with copies they take 800 MB."""
_ROUNDING_ERROR = 2.0**-7
"""Largest relative error of a number that was rounded to bfloat16, or of a sum of two such numbers."""
_LEAST_HALF = 2.0**-24
"""The smallest number above zero that float16 can hold."""
_ROUNDED_SHARE = 2.0**-8
"""Largest error of a share that rounding can cause; a few numbers may dominate a gradient."""
_EXACT = 1e-9
"""Largest relative error of a number that was not rounded to half precision."""
_ROUNDED_PART = 0.5
"""Least part of the numbers that are inexact in a rounded step.

It is also the least part of the error that the shares leave unexplained.
"""
_RATIO_TO_ZERO = 1e9
"""The ratio that ``furthest_ratio`` assumes if only the right learning rate is zero."""


def differences(model: nn.Module, expected: Iterable[torch.Tensor], least: float = 0.0) -> dict[str, float]:
    """Return for each parameter of a model, by name, its largest difference from the expected one.

    ``expected`` has the other parameters, in the model's order. A difference is relative to the largest
    number of the parameter in either model, but at least to ``least``. For that a proof passes the model's
    largest update, because the gradient of a bias before BatchNorm is nothing but rounding. The result is NaN
    where a parameter holds a NaN or an infinite number.
    """
    pairs = zip(model.named_parameters(), expected, strict=True)
    with torch.no_grad():
        return {name: relative(largest(f - e), f, e, least=least) for (name, f), e in pairs}


def relative(size: float, *parameters: torch.Tensor, least: float) -> float:
    """Return ``size`` divided by the largest absolute number of all parameters, but at least by ``least``.

    If this divisor is zero, ``size`` itself is returned.
    """
    return size / (max(*map(largest, parameters), least) or 1.0)


def largest(tensor: torch.Tensor) -> float:
    """Return the largest absolute number of a tensor; 0 if it is empty."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def distance(one: torch.Tensor | None, other: torch.Tensor | None) -> float:
    """Return the largest absolute difference of two gradients; None counts as zeros."""
    if one is None or other is None:
        present = one if other is None else other
        return 0.0 if present is None else largest(present)
    return largest(one - other)


def are_equal(one: Iterable[torch.Tensor | None], other: Iterable[torch.Tensor | None]) -> bool:
    """Return whether two lists of gradients are equal; None counts as zeros."""
    return all(distance(*pair) == 0 for pair in zip(one, other, strict=True))


def dot(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Return the sum of the inner products of all pairs of tensors; only the real part, if complex."""
    return sum(float(torch.vdot(one.flatten(), other.flatten()).real) for one, other in pairs)


def explain(
    update: torch.Tensor, right: torch.Tensor, shards: torch.Tensor, before: torch.Tensor | None
) -> dict[str, Any]:
    """Return the fields of a ``WrongStep`` that state the parts of a wrong step, such as ``shares``.

    The parts are the gradient of each shard and the previous update. Least squares finds how much of each
    the step has. The result is empty if the mean gradient is zero. All arguments are float64 vectors over all
    parameters, and updates are divided by the learning rate, so they have the unit of a gradient.

    Args:
        update: the arm's update.
        right: the reference's update.
        shards: the gradient of each shard, shape (shards, numbers).
        before: the update of the previous step; None in the first step.
    """
    mean, count = shards.mean(0), len(shards)
    if not mean.any():
        return {}
    parts = shards if before is None else torch.cat([shards, before[None]])
    factors = torch.linalg.lstsq(parts @ parts.T, (parts @ update)[:, None], driver="gelsd").solution[:, 0]
    rest = update - factors @ parts
    shares = factors[:count] * count
    return {
        "shares": shares.tolist(),
        "left_over": float(factors[count]) if before is not None else 0.0,
        "unexplained": float(rest.norm() / update.norm()) if update.any() else 0.0,
        "kept": float(right @ mean / (mean @ mean)),
        "rounded": _is_rounded(update, right, shards, shares, rest),
    }


def _is_rounded(
    update: torch.Tensor, right: torch.Tensor, shards: torch.Tensor, shares: torch.Tensor, rest: torch.Tensor
) -> bool:
    """Return whether rounding to half precision, in transport or in the sum, explains all errors of a step.

    Other small errors look different. If something is added, such as weight decay, the error of a number does
    not depend on the number's size. If a factor or a share is slightly wrong it does, but then ``shares``
    explain the whole error, and ``rest`` is small. If a single parameter is wrong, all others are exact.
    """
    error, size = (update - right).abs(), right.abs()
    allowed = _ROUNDING_ERROR * shards.abs().mean(0) + _LEAST_HALF
    if not bool((error <= allowed).all()) or not bool(((shares - 1).abs() < _ROUNDED_SHARE).all()):
        return False
    inexact = (error > _EXACT * size)[size > 0].double().mean()
    return bool(inexact > _ROUNDED_PART) and bool(rest.norm() > _ROUNDED_PART * error.norm())


def as_vector(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return all tensors as one float64 vector on the CPU; a complex number becomes two numbers."""
    flat = [tensor.detach().flatten() for tensor in tensors]
    real = [torch.view_as_real(one).flatten() if one.is_complex() else one for one in flat]
    return torch.cat([one.double().cpu() for one in real])


def furthest_ratio(rates: Iterable[tuple[float, float]]) -> float:
    """Return the ratio of a learning rate to the right one that is furthest from 1.

    ``rates`` has pairs of a learning rate and the right one. A ratio is 1 if both are zero. The result is 1
    without any pair.
    """
    ratios = [rate / right if right else _RATIO_TO_ZERO if rate else 1.0 for rate, right in rates]
    return max(ratios, key=lambda ratio: abs(ratio - 1), default=1.0)


# ---- the record of a step ----


def local_copies(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return detached copies of tensors; of a sharded one (``DTensor``), a copy of this rank's part."""
    return [tensor.detach().clone() for tensor in _local_parts(tensors)]


def _local_parts(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors)


class StepRecord:
    """A record of the optimizers' steps and the backward passes in one training step."""

    def __init__(self, parameters: list[nn.Parameter], *, keeps_gradients: bool = False) -> None:
        self._keeps_gradients = keeps_gradients
        self.calls: Counter[int] = Counter()
        """Steps of each optimizer, by its id; a step within another one, as in Horovod, is not counted."""
        self.gradients: dict[int, torch.Tensor | None] = {}
        """The gradient that each parameter's optimizer got, by the parameter's id; empty unless kept."""
        self.rates: dict[int, float] = {}
        """The learning rate of each parameter, by the parameter's id."""
        self._states: list[list[torch.Tensor]] = []
        """The parameters before and after each optimizer's step; empty unless gradients are kept."""
        self._parameters = parameters
        self._sums: list[float] = []
        self._depth = 0

    @property
    def optimizer_steps(self) -> int:
        """Return the number of steps of the optimizer that stepped most often."""
        return max(self.calls.values(), default=0)

    def changes_outside(self, start: list[torch.Tensor]) -> bool:
        """Return whether a trainable parameter changed since ``start`` outside of an optimizer's step.

        ``start`` has copies of the parameters before the training step. Gradients must be kept.
        """
        states = [start, *self._states, local_copies(self._parameters)]
        pairs = zip(states[::2], states[1::2], strict=True)
        trained = [index for index, parameter in enumerate(self._parameters) if parameter.requires_grad]
        return any(not torch.equal(one[index], other[index]) for one, other in pairs for index in trained)

    @property
    def structure(self) -> str:
        """Return why this is not one backward pass and one optimizer's step; empty if it is."""
        reasons = []
        if len(self.calls) > 1:
            reasons.append(f"{len(self.calls)} optimizers step")
        if len(self._sums) > 1:
            reasons.append(f"{len(self._sums)} backward passes")
        if len(set(self._sums)) > 1:
            reasons.append("parameters change between them")
        return ", ".join(reasons)

    def enter(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Record the learning rates before an optimizer's step; if kept, also parameters and gradients."""
        if self._keeps_gradients and not self._depth:
            self._states.append(local_copies(self._parameters))
        self._depth += 1
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if self._keeps_gradients:
                    gradient = parameter.grad
                    self.gradients[id(parameter)] = None if gradient is None else gradient.detach().clone()
                self.rates[id(parameter)] = float(group.get("lr", 0.0))

    def leave(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Count an optimizer's step that has ended, unless it ran within another one."""
        self._depth -= 1
        self.calls[id(optimizer)] += self._depth == 0
        if self._keeps_gradients and not self._depth:
            self._states.append(local_copies(self._parameters))

    def note_backward(self) -> None:
        """Record a backward pass, with the sum of all absolute parameters, which shows if they change."""
        with torch.no_grad():
            self._sums.append(sum(float(tensor.abs().sum()) for tensor in _local_parts(self._parameters)))


@contextmanager
def recorded_step(parameters: list[nn.Parameter], *, keeps_gradients: bool = False) -> Iterator[StepRecord]:
    """Yield the record of a training step that is taken in the block.

    The record has each call of ``torch.autograd.backward``, which ``Tensor.backward`` calls as well. With
    ``keeps_gradients``, it also has the gradients and parameters at each optimizer's step.
    """
    record = StepRecord(parameters, keeps_gradients=keeps_gradients)
    plain: Callable[..., Any] = torch.autograd.backward

    def recorded(*given: Any, **named: Any) -> None:
        record.note_backward()
        plain(*given, **named)

    with (
        register_optimizer_step_pre_hook(record.enter),
        register_optimizer_step_post_hook(record.leave),
        patch.object(torch.autograd, "backward", recorded),
    ):
        yield record

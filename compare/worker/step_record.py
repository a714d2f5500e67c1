"""Record what the optimizers do in one training step, by torch's hooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

_FROM_ZERO = 1e9
"""The ratio where only the right learning rate is zero."""


def furthest_ratio(rates: Iterable[tuple[float, float]]) -> float:
    """Return which ratio of a learning rate to the right one is furthest from 1.

    ``rates`` are pairs of a learning rate and the right one. A ratio is 1 if both are zero, and the result is
    1 without any pair.
    """
    ratios = [rate / right if right else _FROM_ZERO if rate else 1.0 for rate, right in rates]
    return max(ratios, key=lambda ratio: abs(ratio - 1), default=1.0)


def copies(tensors: list[nn.Parameter]) -> list[torch.Tensor]:
    """Return detached copies of tensors, or of this rank's part of each ``DTensor``."""
    local = (tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors)
    return [tensor.detach().clone() for tensor in local]


class StepRecord:
    """The optimizers' steps and the backward passes of one training step."""

    def __init__(self, parameters: list[nn.Parameter], *, keeps_gradients: bool = False) -> None:
        self._keeps_gradients = keeps_gradients
        self.calls: Counter[int] = Counter()
        """Steps of each optimizer, by its id; a step within another one, as in Horovod, does not count."""
        self.gradients: dict[int, torch.Tensor | None] = {}
        """Each parameter's gradient at its optimizer's step, by the parameter's id; empty unless kept."""
        self.rates: dict[int, float] = {}
        """The learning rate of each parameter, by the parameter's id."""
        self._states: list[list[torch.Tensor]] = []
        """The parameters before and after each optimizer's step, in turn, where gradients are kept."""
        self._parameters = parameters
        self._sums: list[float] = []
        self._depth = 0

    @property
    def optimizer_steps(self) -> int:
        """Return how often the busiest optimizer stepped."""
        return max(self.calls.values(), default=0)

    def changes_outside(self, start: list[torch.Tensor]) -> bool:
        """Return whether a trainable parameter changed since ``start`` outside of an optimizer's step."""
        states = [start, *self._states, copies(self._parameters)]
        pairs = zip(states[::2], states[1::2], strict=True)
        trained = [index for index, parameter in enumerate(self._parameters) if parameter.requires_grad]
        return any(not torch.equal(one[index], other[index]) for one, other in pairs for index in trained)

    @property
    def structure(self) -> str:
        """Return why this is not one backward pass and one optimizer's step; empty if it is."""
        found = []
        if len(self.calls) > 1:
            found.append(f"{len(self.calls)} optimizers step")
        if len(self._sums) > 1:
            found.append(f"{len(self._sums)} backward passes")
        if len(set(self._sums)) > 1:
            found.append("parameters change between them")
        return ", ".join(found)

    def enter(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Note the learning rates, and if kept, the parameters and gradients, before an optimizer's step."""
        if self._keeps_gradients and not self._depth:
            self._states.append(copies(self._parameters))
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
            self._states.append(copies(self._parameters))

    def note_backward(self) -> None:
        """Note the sum of all absolute parameters at a backward pass, which shows whether they change."""
        with torch.no_grad():
            self._sums.append(sum(float(p.abs().sum()) for p in self._parameters))


@contextmanager
def recorded_step(parameters: list[nn.Parameter], *, keeps_gradients: bool = False) -> Iterator[StepRecord]:
    """Yield the record of a training step, which is taken in this block.

    It notes each call of ``torch.autograd.backward``, which ``Tensor.backward`` calls as well. With
    ``keeps_gradients``, it has the gradients and parameters at each optimizer's step.
    """
    record = StepRecord(parameters, keeps_gradients=keeps_gradients)
    plain: Callable[..., Any] = torch.autograd.backward

    def noting(*given: Any, **named: Any) -> None:
        record.note_backward()
        plain(*given, **named)

    hooks = (
        register_optimizer_step_pre_hook(record.enter),
        register_optimizer_step_post_hook(record.leave),
    )
    torch.autograd.backward = noting  # type: ignore[assignment]
    try:
        yield record
    finally:
        torch.autograd.backward = plain
        for hook in hooks:
            hook.remove()

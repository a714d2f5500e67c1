"""Train by the user's own training step, which synchronises the ranks itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from backends.base import BackendError, Batch, Facts, Group, Loss, MakeOptimizer, MakeStep, Options, Replica


class OwnReplica(Replica):
    """A replica whose whole step is the user's own code, which wraps the model, averages and updates."""

    phases = ("backward",)
    takes_whole_step = True

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        group: Group,
        options: Options,
        *,
        make_step: MakeStep,
    ) -> None:
        """Keep the model, and let the user's ``make_step`` make the step that trains it.

        Raises:
            BackendError: ``make_step`` returned no function, or made no optimizer by its second argument.
        """
        optimizers: list[torch.optim.Optimizer] = []

        def make_and_keep(parameters: Iterator[nn.Parameter] | Any) -> torch.optim.Optimizer:
            optimizers.append(make_optimizer(iter(list(parameters))))
            return optimizers[-1]

        self._step = make_step(model, make_and_keep)
        if not callable(self._step):
            returned = type(self._step).__name__
            raise BackendError(f"own_step returned {returned}. Let it return a function that takes a batch.")
        if not optimizers:
            raise BackendError(
                "own_step did not create its optimizer with its second argument, so the proof cannot choose "
                "plain SGD. Write optimizer = make_optimizer(model.parameters())."
            )
        self._optimizers = optimizers
        super().__init__(model, lambda _: optimizers[0], group, options)

    def accumulate(self, passes: int) -> None:
        if passes > 1:
            raise BackendError(
                "a step of your own takes one batch. Leave out --accumulate, and accumulate inside the step."
            )

    def learn(self, batch: Batch, loss: Loss, on_phase: Callable[[str], None] = lambda _: None) -> None:
        del loss  # the user's step computes its own
        self._step(batch)
        on_phase("backward")

    def step(self) -> None:
        pass

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return self._optimizers

    def library_bytes(self) -> int | None:
        return None

    def attest(self) -> Facts:
        return super().attest() | {"reduce_op": "the user's own"}

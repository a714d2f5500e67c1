"""Train through the user's own distributed step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from backends.base import BackendError, Batch, Facts, Group, Loss, MakeOptimizer, MakeStep, Options, Replica


class OwnReplica(Replica):
    """A replica whose whole step is the user's, with wrapper, synchronisation and optimizer."""

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
        """Take over the model, and let the user's ``make_step`` make a step from it.

        Raises:
            BackendError: ``make_step`` returned no function, or made no optimizer by its second argument.
        """
        made: list[torch.optim.Optimizer] = []

        def make(parameters: Iterator[nn.Parameter] | Any) -> torch.optim.Optimizer:
            made.append(make_optimizer(iter(list(parameters))))
            return made[-1]

        self._step = make_step(model, make)
        if not callable(self._step):
            returned = type(self._step).__name__
            raise BackendError(f"own_step returned {returned}. Let it return a function that takes a batch.")
        if not made:
            raise BackendError(
                "own_step did not create its optimizer with its second argument, so the proof cannot choose "
                "plain SGD. Write optimizer = make_optimizer(model.parameters())."
            )
        self._made = made
        super().__init__(model, lambda _: made[0], group, options)

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
        return self._made

    def attest(self) -> Facts:
        return super().attest() | {"reduce_op": "the user's own"}

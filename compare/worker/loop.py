"""Train by the same loop in all arms, which differ only in their replica."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn

if TYPE_CHECKING:
    from backends.base import Batch, Loss, Replica

BeforeStep: TypeAlias = Callable[[nn.Module, list[torch.optim.Optimizer]], None]
"""A function that changes the averaged gradients of a model, or settings of its optimizers."""


def train(
    replica: Replica,
    batches: Iterator[Batch],
    loss: Loss,
    steps: int,
    on_phase: Callable[[str], None] = lambda _: None,
    *,
    before_step: BeforeStep | None = None,
) -> None:
    """Take ``steps`` training steps of a replica, each on the next batch or batches.

    The loop itself does not print, allocate, or copy to the host. ``on_phase`` is called with the name of
    each phase that has ended; ``forward`` includes fetching the batch. ``before_step`` is called after the
    gradients are averaged and before the optimizer's step.
    """
    passes = replica.passes_per_step
    for _ in range(steps):
        for batch in islice(batches, passes):
            replica.learn(batch, loss, on_phase)
        replica.sync()
        on_phase("sync")
        if before_step:
            before_step(replica.model, replica.optimizers())
        replica.step()
        on_phase("step")

"""Train and evaluate by the same loop in all arms, which differ only in their replica."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn

from compare.worker.models import loss_function

if TYPE_CHECKING:
    from backends.base import Batch, Loss, Replica

EVALUATION_BATCH = 1000


BeforeStep: TypeAlias = Callable[[nn.Module, list[torch.optim.Optimizer]], None]
"""Function that changes the averaged gradients of a model, or settings of its optimizers."""


def train(
    replica: Replica,
    batches: Iterator[Batch],
    loss: Loss,
    steps: int,
    on_phase: Callable[[str], None] = lambda _: None,
    *,
    before_step: BeforeStep | None = None,
) -> None:
    """Take ``steps`` training steps.

    The loop itself does not print, allocate, or copy to the host. ``on_phase`` is called with the name of
    each phase that has ended; ``forward`` includes fetching the batch. ``before_step`` is called between the
    average and the optimizer's step.
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


@torch.no_grad()
def evaluate(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    shard: tuple[int, int],
    on_batch: Callable[[], None] = lambda: None,
) -> tuple[int, int, float]:
    """Test a model on one shard of the test set.

    The shard is (index, count); all shards together hold every sample once. ``on_batch`` is called before
    every ``EVALUATION_BATCH`` samples.

    Returns:
        The number of right samples, the number of samples, and the sum of their losses.
    """
    index, count = shard
    images, labels = images[index::count], labels[index::count]
    correct, loss = 0, 0.0
    training = model.training
    model.eval()
    for inputs, targets in zip(images.split(EVALUATION_BATCH), labels.split(EVALUATION_BATCH), strict=True):
        on_batch()
        logits = model(inputs)
        loss += loss_function(logits, targets, reduction="sum").item()
        correct += int((logits.argmax(1) == targets).sum())
    model.train(training)
    return correct, len(labels), loss

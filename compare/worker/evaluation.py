"""Test the model at the end of the training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from backends.base import Group, Replica
from compare.schema.results import Evaluation
from compare.worker.compilation import not_compiled
from compare.worker.parity import hash_parameters, hash_tensors
from compare.worker.randomness import same_randomness
from compare.worker.sketch import sketch, unmoved
from compare.worker.task import Task


class Trained(NamedTuple):
    """The result of the test, and facts about the final model; fields as in ``RankResult``."""

    final_hash: str
    """SHA-256 of the whole model's parameters."""
    buffer_hash: str
    """SHA-256 of this rank's own buffers; empty if it has none."""
    evaluation: Evaluation
    gradient_bytes: int
    """Bytes of one gradient for every parameter of the whole model."""
    gradient_tensors: int
    unmoved: list[str]
    """Names of trainable parameters that equal their start bit for bit; empty on other ranks than 0."""
    sketch: list[float]
    """Random projection of the change of all parameters; empty on other ranks than 0."""


def test_model(
    task: Task, replica: Replica, group: Group, note: Callable[[], None], *, communicates: bool
) -> Trained:
    """Test the whole model on this rank's share of the test set, in the run's precision. Collective.

    Where the arm ``communicates``, every rank tests with the buffers of rank 0, so all shares are tested on
    one model. ``note`` is called before every batch.
    """
    whole = replica.whole()
    buffers = list(whole.buffers())
    buffer_hash = hash_tensors(buffers) if buffers else ""
    shared = _buffers_of_first_rank(whole, group if communicates else None)
    # Not compiled: another graph for one pass would take longer than it saves.
    with shared, task.in_precision(), not_compiled(task.config):
        evaluation = task.test(whole, (group.rank, group.world_size), note)
    trained = [parameter for parameter in whole.parameters() if parameter.requires_grad]
    return Trained(
        final_hash=hash_parameters(whole),
        buffer_hash=buffer_hash,
        evaluation=evaluation,
        gradient_bytes=sum(parameter.nbytes for parameter in trained),
        gradient_tensors=len(trained),
        **(_changes(task, whole) if group.rank == 0 else {"unmoved": [], "sketch": []}),
    )


def _changes(task: Task, trained: nn.Module) -> dict[str, list[Any]]:
    """Return the fields ``unmoved`` and ``sketch`` of ``Trained``; the start is a new model of the task."""
    with same_randomness(task.device):
        start = task.anew().build_model()
    return {"unmoved": unmoved(trained, start), "sketch": sketch(trained, start)}


@contextmanager
@torch.no_grad()
def _buffers_of_first_rank(model: nn.Module, group: Group | None) -> Iterator[None]:
    """Give a model the buffers of rank 0 during the block, and its own again after it. Collective.

    Without a group the model keeps its own buffers.
    """
    own = [(buffer, buffer.clone()) for buffer in model.buffers() if group and buffer.numel()]
    for buffer, _ in own:
        # As bytes, because not every library carries every dtype.
        sent = buffer.clone(memory_format=torch.contiguous_format)
        group.broadcast_(sent.view(-1).view(torch.uint8))  # type: ignore[union-attr]  # own is empty then
        buffer.copy_(sent)
    yield
    for buffer, kept in own:
        buffer.copy_(kept)

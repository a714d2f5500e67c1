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
    """The model at the end of the training."""

    final_hash: str
    buffer_hash: str
    """Of this rank's own buffers; empty without any."""
    evaluation: Evaluation
    gradient_bytes: int
    gradient_tensors: int
    unmoved: list[str]
    """Parameters that should train, and that are those of the start; only on rank 0."""
    sketch: list[float]
    """Of what the training changed; only on rank 0."""


def test_model(
    task: Task, replica: Replica, group: Group, note: Callable[[], None], *, communicates: bool
) -> Trained:
    """Test the whole model on this rank's share of samples. Collective.

    It has the run's precision. Where the arm ``communicates``, every rank tests rank 0's buffers. So all
    shares are of one model. ``note`` is called before every batch.
    """
    whole = replica.whole()
    buffers = list(whole.buffers())
    buffer_hash = hash_tensors(buffers) if buffers else ""
    shared = _buffers_of_first_rank(whole, group if communicates else None)
    # Not compiled: another graph for one pass would take longer than it saves.
    with shared, task.in_precision(), not_compiled(task.config):
        evaluation = task.test(whole, (group.rank, group.world_size), note)
    return Trained(
        final_hash=hash_parameters(whole),
        buffer_hash=buffer_hash,
        evaluation=evaluation,
        gradient_bytes=sum(p.numel() * p.element_size() for p in whole.parameters()),
        gradient_tensors=len(list(whole.parameters())),
        **(_changes(task, whole) if group.rank == 0 else {"unmoved": [], "sketch": []}),
    )


def _changes(task: Task, trained: nn.Module) -> dict[str, list[Any]]:
    """Compare a trained model with the task's own start."""
    with same_randomness(task.device):
        start = task.anew().build_model()
    return {"unmoved": unmoved(trained, start), "sketch": sketch(trained, start)}


@contextmanager
@torch.no_grad()
def _buffers_of_first_rank(model: nn.Module, group: Group | None) -> Iterator[None]:
    """Give a model rank 0's buffers, and its own back afterwards.

    Without a group it keeps its own.
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

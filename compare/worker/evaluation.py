"""Test the model at the end of the training, and summarise in a few numbers what the training changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from backends.base import Group, Replica
from compare.schema.results import Evaluation
from compare.worker.compilation import not_compiled
from compare.worker.randomness import same_randomness
from compare.worker.shards import copy_tensors, hash_tensors
from compare.worker.task import Task

_SKETCHED = 256
"""Numbers in a sketch.

The squared distance of two sketches has a relative standard error of 9 %, the square root of 2 / 256.
"""
_PIECE = 1 << 20


class Trained(NamedTuple):
    """The result of the test, and facts about the final model; fields as in ``RankResult``."""

    final_hash: str
    buffer_hash: str
    evaluation: Evaluation
    gradient_bytes: int
    """Bytes of one gradient for every parameter of the whole model."""
    gradient_tensors: int
    unmoved: list[str]
    sketch: list[float]


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
    own = [buffer.detach().clone() for buffer in buffers]
    if communicates:
        copy_tensors(buffers_of(whole, group, 0), buffers)
    # Not compiled: another graph for one pass would take longer than it saves.
    with task.in_precision(), not_compiled(task.config):
        evaluation = task.test(whole, (group.rank, group.world_size), note)
    copy_tensors(own, whole.buffers())
    changes: dict[str, list[Any]] = {"unmoved": [], "sketch": []}
    if group.rank == 0:
        with same_randomness(task.device):
            start = task.anew().build_model()
        changes = {"unmoved": unmoved(whole, start), "sketch": sketch(whole, start)}
    trained = [parameter for parameter in whole.parameters() if parameter.requires_grad]
    return Trained(
        final_hash=hash_tensors(whole.parameters()),
        buffer_hash=buffer_hash,
        evaluation=evaluation,
        gradient_bytes=sum(parameter.nbytes for parameter in trained),
        gradient_tensors=len(trained),
        **changes,
    )


def buffers_of(model: nn.Module, group: Group, rank: int) -> list[torch.Tensor]:
    """Return copies of the buffers of a rank's model, which has the form of this rank's. Collective."""
    copies = [buffer.detach().clone(memory_format=torch.contiguous_format) for buffer in model.buffers()]
    # As bytes, because not every library carries every dtype, and in one call, because there may be hundreds.
    pieces = [copy.view(-1).view(torch.uint8) for copy in copies if copy.numel()]
    if pieces:
        sent = torch.cat(pieces)
        group.broadcast_(sent, rank)
        copy_tensors(sent.split([len(piece) for piece in pieces]), pieces)
    return copies


def unmoved(trained: nn.Module, start: nn.Module) -> list[str]:
    """Return the names of the trainable parameters that equal those of the start, bit for bit."""
    pairs = zip(trained.named_parameters(), start.parameters(), strict=True)
    return [name for (name, one), other in pairs if one.requires_grad and torch.equal(one, other)]


@torch.no_grad()
def sketch(trained: nn.Module, start: nn.Module) -> list[float]:
    """Return a random projection of the change of all parameters: a count sketch.

    Each number of the change is added to one of ``_SKETCHED`` numbers, or subtracted from it. Which one, and
    with which sign, is random but the same in every call. So the distance of two sketches is about that of
    the parameters (Charikar, Chen and Farach-Colton, 2002). Empty if a change is not finite.
    """
    chance = torch.Generator().manual_seed(0)
    found = torch.zeros(_SKETCHED, dtype=torch.float64)
    for one, other in zip(trained.parameters(), start.parameters(), strict=True):
        change = (one.detach() - other.detach()).flatten().cpu()
        real = torch.view_as_real(change).flatten() if change.is_complex() else change
        for piece in real.double().split(_PIECE):
            places = torch.randint(_SKETCHED, (len(piece),), generator=chance)
            signs = torch.randint(2, (len(piece),), generator=chance) * 2 - 1
            found.index_add_(0, places, piece * signs)
    return found.tolist() if bool(torch.isfinite(found).all()) else []

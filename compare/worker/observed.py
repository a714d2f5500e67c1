"""Observe a training: its first step, when each gradient is ready, and its final model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import torch
from torch import nn

from backends.base import Batch, Facts, Group, Replica
from compare.schema.config import RunConfig
from compare.schema.memory import ModelParameter
from compare.schema.results import Evaluation, GradientTimes
from compare.worker.blocks import Side
from compare.worker.compilation import counting_graphs, not_compiled
from compare.worker.held import take_counted_step
from compare.worker.meters import Mark, mark_time, nanoseconds_between, read_clock
from compare.worker.randomness import same_randomness
from compare.worker.shards import copy_tensors, hash_tensors
from compare.worker.task import Task

_GRADIENT_STEPS = 6
"""Number of training steps that ``time_gradients`` takes; the first of them is not timed."""
_SKETCH_SIZE = 256
"""Number of elements in a sketch.

The squared distance of two sketches has a relative standard error of 9 %, the square root of 2 / 256.
"""
_PIECE = 1 << 20


# ---- steps, by hooks ----


class FirstStep(NamedTuple):
    """The figures of the first step of a training."""

    seconds: float
    """Time of the step, including the time to compile."""
    held: Facts
    """The facts of ``take_counted_step`` if the step was counted; otherwise empty."""
    attested: Facts
    """The facts ``activation_dtypes``, ``compiled_graphs`` and ``graph_breaks``."""


def take_first_step(side: Side, config: RunConfig, device: torch.device, *, is_counted: bool) -> FirstStep:
    """Train one step, and return how long it took and what it computed; ``is_counted`` adds its memory."""
    dtypes: set[str] = set()
    attested: Facts = {}
    held: Facts = {}

    def loss(model: Callable[..., Any], batch: Batch) -> torch.Tensor:
        result = side.loss(model, batch)
        dtypes.update(_activation_dtypes(result))
        return result

    begun = monotonic()
    with counting_graphs(config, attested):
        observed = side._replace(loss=loss)
        if is_counted:
            held = take_counted_step(observed, config)
        else:
            observed.train(1)
    read_clock(device)
    attested["activation_dtypes"] = sorted(dtypes)
    return FirstStep(monotonic() - begun, held, attested)


def _activation_dtypes(loss: torch.Tensor) -> set[str]:
    """Return the names of the dtypes that the operations of a loss's forward pass returned."""
    dtypes: set[str] = set()
    for node in graph_nodes([loss]):
        if hasattr(node, "variable"):
            continue  # a parameter is no result
        dtypes.update(str(result.dtype) for result in node._input_metadata)  # noqa: SLF001 -- no public name
        # A compiled graph is one operation, so its saved tensors are read. Those of other operations are not,
        # because checkpointing would compute them anew.
        if node.name().startswith("CompiledFunction"):
            dtypes.update(str(kept.dtype) for kept in node.saved_tensors if kept.is_floating_point())
    return dtypes


def graph_nodes(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Yield each node of tensors' autograd graphs once; a parameter's node has it as ``variable``."""
    ahead, seen = [tensor.grad_fn for tensor in tensors], set[Any]()
    while ahead:
        node = ahead.pop()
        if node is not None and node not in seen:
            seen.add(node)
            ahead += [before for before, _ in node.next_functions]
            yield node


def time_gradients(side: Side, device: torch.device, note: Callable[[int], None]) -> list[GradientTimes]:
    """Train a few steps of the reference, and return when the gradient of each parameter is ready.

    The times are nanoseconds after a step's last forward pass. The list is in the order of the parameters,
    without those that lack a gradient in a step. ``note`` is called once, with the number of steps.
    """
    note(_GRADIENT_STEPS)
    with same_randomness(device):
        steps = _gradient_moments(side, device)[1:]
    read_clock(device)
    return [
        GradientTimes(
            gradient_bytes=parameter.numel() * parameter.element_size(),
            ready_ns=[nanoseconds_between(step["forward"], step[index]) for step in steps],
        )
        for index, parameter in enumerate(side.replica.model.parameters())
        if all(index in step for step in steps)
    ]


def _gradient_moments(side: Side, device: torch.device) -> list[dict[int | str, Mark]]:
    """Train a few steps, and return for each step the moment when each gradient is ready.

    The moments are those of the step's last pass. A key is the index of a parameter, or ``forward`` for the
    end of the forward pass.
    """
    steps: list[dict[int | str, Mark]] = []
    marks: dict[int | str, Mark] = {}

    def mark(key: int | str, _: object = None) -> None:
        marks[key] = mark_time(device)

    def on_phase(phase: str) -> None:
        if phase == "forward":
            mark(phase)
        elif phase == "step":
            steps.append(dict(marks))
            marks.clear()

    with ExitStack() as hooks:
        for index, parameter in enumerate(side.replica.model.parameters()):
            if parameter.requires_grad:
                hooks.callback(parameter.register_post_accumulate_grad_hook(partial(mark, index)).remove)
        side.train(_GRADIENT_STEPS, on_phase)
    return steps


# ---- the end of the training ----


class Trained(NamedTuple):
    """The result of the test, and facts about the final model; the fields are those of ``RankResult``."""

    final_hash: str
    buffer_hash: str
    evaluation: Evaluation
    gradient_bytes: int
    """Bytes of one gradient for every trainable parameter of the whole model."""
    gradient_tensors: int
    unmoved: list[str]
    parameters: list[ModelParameter]
    sketch: list[float]


def test_model(
    task: Task, replica: Replica, group: Group, note: Callable[[], None], *, communicates: bool
) -> Trained:
    """Test the whole model on this rank's part of the test set, in the run's precision.

    All ranks must call this together. If the arm ``communicates``, every rank tests with the buffers of
    rank 0, so that all ranks test the same model. ``note`` is called before every batch.
    """
    whole = replica.whole()
    buffers = list(whole.buffers())
    buffer_hash = hash_tensors(buffers) if buffers else ""
    saved = [buffer.detach().clone() for buffer in buffers]
    if communicates:
        copy_tensors(buffers_of(whole, group, 0), buffers)
    # Not compiled: another graph for one pass would take longer than it saves.
    with task.in_precision(), not_compiled(task.config):
        evaluation = task.test(whole, (group.rank, group.world_size), note)
    copy_tensors(saved, whole.buffers())
    changes: dict[str, list[Any]] = {"unmoved": [], "parameters": [], "sketch": []}
    if group.rank == 0:
        with same_randomness(task.device):
            start = task.anew().build_model()
        changes = {
            "unmoved": unmoved(whole, start),
            "parameters": describe_parameters(whole),
            "sketch": sketch(whole, start),
        }
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
    """Return copies of the buffers of ``rank``'s model on every rank; all ranks must call this together."""
    copies = [buffer.detach().clone(memory_format=torch.contiguous_format) for buffer in model.buffers()]
    # As bytes, because not every library carries every dtype, and in one call, because there may be hundreds.
    pieces = [copy.view(-1).view(torch.uint8) for copy in copies if copy.numel()]
    if pieces:
        sent = torch.cat(pieces)
        group.broadcast_(sent, rank)
        copy_tensors(sent.split([len(piece) for piece in pieces]), pieces)
    return copies


def unmoved(trained: nn.Module, start: nn.Module) -> list[str]:
    """Return the names of the trainable parameters that a training left as in ``start``, bit for bit."""
    pairs = zip(trained.named_parameters(), start.parameters(), strict=True)
    return [name for (name, last), first in pairs if last.requires_grad and torch.equal(last, first)]


def describe_parameters(model: nn.Module) -> list[ModelParameter]:
    """Return the name, shape and bytes of every parameter of a model, in order; shared ones once."""
    return [
        ModelParameter(name=name, shape=list(one.shape), bytes=one.nbytes, trained=one.requires_grad)
        for name, one in model.named_parameters()
    ]


@torch.no_grad()
def sketch(trained: nn.Module, start: nn.Module) -> list[float]:
    """Return a count sketch of how a training changed all parameters: ``_SKETCH_SIZE`` numbers.

    Each number of the change is added to one of these, or subtracted from it. Which one, and with which
    sign, is random but the same in every call. So two sketches are about as far apart as the parameters
    (Charikar, Chen and Farach-Colton, 2002). The list is empty if a change is not finite.
    """
    chance = torch.Generator().manual_seed(0)
    totals = torch.zeros(_SKETCH_SIZE, dtype=torch.float64)
    for last, first in zip(trained.parameters(), start.parameters(), strict=True):
        change = (last.detach() - first.detach()).flatten().cpu()
        real = torch.view_as_real(change).flatten() if change.is_complex() else change
        for piece in real.double().split(_PIECE):
            indices = torch.randint(_SKETCH_SIZE, (len(piece),), generator=chance)
            signs = torch.randint(2, (len(piece),), generator=chance) * 2 - 1
            totals.index_add_(0, indices, piece * signs)
    return totals.tolist() if bool(torch.isfinite(totals).all()) else []

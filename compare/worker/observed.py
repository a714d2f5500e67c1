"""Observe steps by hooks: the dtypes and graphs of the first one, and when each gradient is ready."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import torch

from backends.base import Batch, Facts
from compare.schema.config import RunConfig
from compare.schema.results import GradientTimes
from compare.worker.blocks import Side
from compare.worker.compilation import counting_graphs
from compare.worker.meters import Mark, mark_time, nanoseconds_between, read_clock
from compare.worker.randomness import same_randomness

_GRADIENT_STEPS = 6
"""Steps in which gradients are timed; the first one is not timed."""


class FirstStep(NamedTuple):
    """What the first step of a training showed."""

    seconds: float
    """Time of the step, with the time to compile."""
    gradient_bytes: int
    """Bytes of gradients that the rank held before the optimizer's step."""
    attested: Facts
    """``activation_dtypes``, ``compiled_graphs`` and ``graph_breaks``."""


def take_first_step(own: Side, config: RunConfig, device: torch.device) -> FirstStep:
    """Train one step, and note the dtypes of activations, compiled graphs and bytes of gradients."""
    dtypes: set[str] = set()
    attested: Facts = {}
    gradient_bytes = 0

    def count(phase: str) -> None:
        nonlocal gradient_bytes
        if phase == "sync":
            gradient_bytes = own.replica.held_bytes()["gradient_bytes"]

    def loss(model: Callable[..., Any], batch: Batch) -> torch.Tensor:
        found = own.loss(model, batch)
        dtypes.update(_activation_dtypes(found))
        return found

    begun = monotonic()
    with counting_graphs(config, attested):
        own._replace(loss=loss).train(1, count)
    read_clock(device)
    attested["activation_dtypes"] = sorted(dtypes)
    return FirstStep(monotonic() - begun, gradient_bytes, attested)


def _activation_dtypes(loss: torch.Tensor) -> set[str]:
    """Return the dtypes, by name, of all results of operations in the forward pass of a loss."""
    found: set[str] = set()
    for node in graph_nodes([loss]):
        if hasattr(node, "variable"):
            continue  # a parameter is no result
        found.update(str(result.dtype) for result in node._input_metadata)  # noqa: SLF001 -- no public name
        # A compiled graph is one operation, so its saved tensors are read. Those of other operations are not,
        # because checkpointing would compute them anew.
        if node.name().startswith("CompiledFunction"):
            found.update(str(kept.dtype) for kept in node.saved_tensors if kept.is_floating_point())
    return found


def graph_nodes(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Yield each node of the autograd graphs of tensors once; that of a parameter has its ``variable``."""
    ahead, seen = [tensor.grad_fn for tensor in tensors], set[Any]()
    while ahead:
        node = ahead.pop()
        if node is not None and node not in seen:
            seen.add(node)
            ahead += [before for before, _ in node.next_functions]
            yield node


def time_gradients(side: Side, device: torch.device, note: Callable[[int], None]) -> list[GradientTimes]:
    """Train a few steps of the reference, and return when each gradient is ready in each step.

    Times are nanoseconds after the last forward pass. The list is in the order of the model's parameters, and
    leaves out those that lack a gradient in any step. ``note`` is called once, with the number of steps.
    """
    note(_GRADIENT_STEPS)
    with same_randomness(device):
        steps = _hooked_steps(side, device)[1:]
    read_clock(device)
    return [
        GradientTimes(
            gradient_bytes=parameter.numel() * parameter.element_size(),
            ready_ns=[nanoseconds_between(step["forward"], step[index]) for step in steps],
        )
        for index, parameter in enumerate(side.replica.model.parameters())
        if all(index in step for step in steps)
    ]


def _hooked_steps(side: Side, device: torch.device) -> list[dict[int | str, Mark]]:
    """Return for each step the mark of every gradient, by the parameter's index, and that of ``forward``.

    If a step has several passes, the last pass overwrites the marks of the earlier ones.
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

    hooks = [
        parameter.register_post_accumulate_grad_hook(partial(mark, index))
        for index, parameter in enumerate(side.replica.model.parameters())
        if parameter.requires_grad
    ]
    try:
        side.train(_GRADIENT_STEPS, on_phase)
    finally:
        for hook in hooks:
            hook.remove()
    return steps

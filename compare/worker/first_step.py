"""Take the first training step, and note the dtypes, graphs and gradients that it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, NamedTuple

import torch

from backends.base import Batch, Facts
from compare.schema.config import RunConfig
from compare.worker.blocks import Side
from compare.worker.clock import read_clock
from compare.worker.compilation import counting_graphs


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
    for node in _operations_before(loss):
        found.update(str(result.dtype) for result in node._input_metadata)  # noqa: SLF001 -- no public name
        # A compiled graph is one operation, so its saved tensors are read. Those of other operations are not,
        # because checkpointing would compute them anew.
        if node.name().startswith("CompiledFunction"):
            found.update(str(kept.dtype) for kept in node.saved_tensors if kept.is_floating_point())
    return found


def _operations_before(loss: torch.Tensor) -> Iterator[Any]:
    """Yield each node of the loss's autograd graph once, without those of parameters."""
    ahead, seen = [loss.grad_fn], set[Any]()
    while ahead:
        node = ahead.pop()
        if node is not None and node not in seen and not hasattr(node, "variable"):
            seen.add(node)
            ahead += [before for before, _ in node.next_functions]
            yield node

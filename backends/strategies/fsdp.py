"""Train through torch's ``fully_shard``, which shards parameters, gradients and optimizer state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from backends.base import SPARSE, STRIDED, UNCOPIED, Replica
from backends.strategies.models import copy_with, require_one_dtype, start_from_first_rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from backends.base import Batch, Facts, Group, Loss, MakeOptimizer, Options


class FSDPReplica(Replica):
    """A replica that holds shards of the parameters, and gathers those of one layer at a time in a pass."""

    phases = ("forward", "backward", "step")
    unsupported = frozenset({SPARSE, STRIDED, UNCOPIED})

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        require_one_dtype(model, "fsdp")
        start_from_first_rank(model, group)
        self._empty_model = copy_with(model, lambda tensor: torch.empty_like(tensor, device="meta"))
        self._units = _shard(model)
        self._passes_done = 0
        super().__init__(model, make_optimizer, group, options)

    def compile(self, compile_calls: Callable[[nn.Module], None]) -> None:
        # torch gathers parameters between units, and cannot compile that.
        for unit in self._units:
            compile_calls(unit)  # type: ignore[arg-type]  # it is a module, too

    def learn(self, batch: Batch, loss: Loss, on_phase: Callable[[str], None] = lambda _: None) -> None:
        if self.passes_per_step > 1:  # only the last pass of a step communicates its gradients
            last = (self._passes_done + 1) % self.passes_per_step == 0
            self._units[-1].set_requires_gradient_sync(last)
        super().learn(batch, loss, on_phase)
        self._passes_done += 1

    @torch.no_grad()
    def whole(self) -> nn.Module:
        sharded = [*self.model.parameters(), *self.model.buffers()]
        plain = [*self._empty_model.parameters(), *self._empty_model.buffers()]
        full = {
            id(empty): (shard.full_tensor() if isinstance(shard, DTensor) else shard).detach().clone()
            for empty, shard in zip(plain, sharded, strict=True)
        }
        return copy_with(self._empty_model, lambda tensor: full[id(tensor)])

    def attest(self) -> Facts:
        return super().attest() | {"reduce_op": "mean", "units": len(self._units)}


def _shard(model: nn.Module) -> list[FSDPModule]:
    """Shard a model in place, and return the modules that gather their parameters at once, last the model."""
    # Before a layer computes, forward and backward, its hooks gather the layer's shards of parameters.
    # After its backward they sum the gradients, and leave each rank its shard of them.
    return [*map(fully_shard, _layers(model)), fully_shard(model)]


def _layers(model: nn.Module) -> list[nn.Module]:
    """Return the direct children that share no parameter, or none if only one child has any."""
    layers = [layer for layer in model.children() if any(True for _ in layer.parameters())]
    uses = [id(parameter) for layer in layers for parameter in layer.parameters()]
    direct = {id(parameter) for parameter in model.parameters(recurse=False)}
    held = {layer: {id(parameter) for parameter in layer.parameters()} for layer in layers}
    return [
        layer
        for layer in layers
        if not held[layer] & direct and all(uses.count(one) == 1 for one in held[layer]) and len(layers) > 1
    ]

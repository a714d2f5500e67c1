"""Train through torch's ``fully_shard``, which shards parameters, gradients and optimizer state."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from backends.base import SPARSE, STRIDED, UNCOPIED, BackendError, Group, Replica
from backends.strategies.models import copy_with, require_one_dtype, start_from_first_rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.base import Batch, Facts, Loss, MakeOptimizer, Options

_DTYPES = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class FSDPReplica(Replica):
    """A replica that holds shards of the parameters, and gathers those of one unit at a time in a pass."""

    phases = ("forward", "backward", "step")
    unsupported = frozenset({SPARSE, STRIDED, UNCOPIED})

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        require_one_dtype(model, "fsdp")
        _require_dimensions(model)
        start_from_first_rank(model, group)
        self._empty_model = copy_with(model, lambda tensor: torch.empty_like(tensor, device="meta"))
        self._options = options
        self._reshards = bool(options["reshard_after_forward"])
        self._units = self._shard(model, group)
        self._prefetch(int(options["prefetch"]))
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
            id(empty): self._gather(shard) if isinstance(shard, DTensor) else shard.detach().clone()
            for empty, shard in zip(plain, sharded, strict=True)
        }
        return copy_with(self._empty_model, lambda tensor: full[id(tensor)])

    def library_bytes(self) -> int | None:
        if self._options["prefetch"]:
            return None  # buffers of units that are on their way cannot be seen
        if self.passes_per_step == 1:
            return 0
        # Between the passes of a step, units keep whole gradients.
        return sum(p.numel() * p.element_size() for p in self.model.parameters() if p.requires_grad)

    def _gather(self, shard: DTensor) -> torch.Tensor:
        """Return a copy of a whole parameter; one in host memory is gathered on the group's device."""
        on_device: Any = shard.detach().to(self.group.device)
        whole: torch.Tensor = on_device.full_tensor()
        # torch copies no shard that is the whole parameter, and any other should not be copied twice.
        return whole.clone() if whole.data_ptr() == on_device.to_local().data_ptr() else whole

    def attest(self) -> Facts:
        return super().attest() | {
            "reduce_op": "mean",
            "units": self._options["units"],
            "gathered_units": len(self._units),
            "reshard_after_forward": self._reshards,
            "replicate": self._options["replicate"],
            "prefetch": self._options["prefetch"],
            "offload": self._options["offload"],
            "param_dtype": self._options["param_dtype"],
            "reduce_dtype": self._options["reduce_dtype"],
        }

    def _shard(self, model: nn.Module, group: Group) -> list[FSDPModule]:
        """Shard a model in place, and return the units that are gathered one by one, last the model."""
        mesh = _mesh(group, int(self._options["replicate"]))
        policy = MixedPrecisionPolicy(
            param_dtype=_DTYPES[str(self._options["param_dtype"])],
            reduce_dtype=_DTYPES[str(self._options["reduce_dtype"])],
        )
        offload = CPUOffloadPolicy() if self._options["offload"] == "cpu" else OffloadPolicy()
        # Before a unit computes, forward and backward, its hooks gather the unit's shards of parameters.
        # After its backward they sum the gradients, and leave each rank its shard of them.
        return [
            fully_shard(
                unit,
                mesh=mesh,
                mp_policy=policy,
                offload_policy=offload,
                # The model's own parameters come first in backward, so it would be in vain to give them up.
                reshard_after_forward=self._reshards and unit is not model,
            )
            for unit in [*find_units(model, str(self._options["units"])), model]
        ]

    def _prefetch(self, count: int) -> None:
        """Let each unit gather the next ``count`` of them ahead; with 0, torch decides what it gathers."""
        if not count:
            return
        *units, model = self._units
        model.set_modules_to_forward_prefetch(units[:count])
        model.set_modules_to_backward_prefetch(units[::-1][:count])
        for index, unit in enumerate(units):
            unit.set_modules_to_forward_prefetch(units[index + 1 : index + 1 + count])
            unit.set_modules_to_backward_prefetch(units[max(0, index - count) : index][::-1])


def _require_dimensions(model: nn.Module) -> None:
    """Require that ranks can divide every parameter.

    Raises:
        BackendError: a parameter is a single number without a dimension; the message names it.
    """
    scalars = [name for name, parameter in model.named_parameters() if not parameter.dim()]
    if scalars:
        raise BackendError(
            f"fsdp divides parameters by their first dimension, and these have none: {', '.join(scalars)}. "
            "Give them the shape (1,), or leave this arm out."
        )


@lru_cache(maxsize=1)
def _mesh(group: Group, replicas: int) -> DeviceMesh | None:
    """Return the ranks as a mesh of replicas and of shards, or None if there is one replica.

    Consecutive ranks share a replica, so those of one host do if each host has one. A mesh makes process
    groups, so the replicas of a proof and of the training have the same one.
    """
    if replicas == 1:
        return None
    shape = replicas, group.world_size // replicas
    return init_device_mesh(group.device.type, shape, mesh_dim_names=("replicate", "shard"))


def find_units(model: nn.Module, kind: str) -> list[nn.Module]:
    """Return the modules that are gathered one by one, without the model itself, which gathers the rest.

    ``kind`` is ``blocks``, ``layers`` or ``model``. Blocks are the modules of the classes that the model
    names in ``_no_split_modules``, as models of Hugging Face do, or else those that it repeats. Without any,
    ``blocks`` means layers. A module that shares a parameter with another is no unit.
    """
    units = []
    if kind == "blocks":
        kinds = (_named(model), _blocks(model, in_lists=True), _blocks(model, in_lists=False))
        units = next((found for found in kinds if len(found) > 1), [])
    if not units and kind != "model":
        units = _layers(model)
    uses = _uses(model)
    alone = [unit for unit in units if all(uses[key] == count for key, count in _uses(unit).items())]
    return alone if len(units) > 1 else []


def _named(model: nn.Module) -> list[nn.Module]:
    """Return the outermost modules of the classes that the model, or a module in it, names as undivided."""
    names = {name for one in model.modules() for name in getattr(one, "_no_split_modules", None) or ()}

    def within(module: nn.Module) -> list[nn.Module]:
        return [
            unit
            for one in _with_parameters(module)
            for unit in ([one] if type(one).__name__ in names else within(one))
        ]

    return within(model) if names else []


def _layers(model: nn.Module) -> list[nn.Module]:
    """Return the direct children with parameters, and in place of a list or a sequence its modules."""
    return [
        layer for one in _with_parameters(model) for layer in (_layers(one) if _is_container(one) else [one])
    ]


def _blocks(model: nn.Module, *, in_lists: bool) -> list[nn.Module]:
    """Return the outermost modules with layers in them that have a sibling of their class.

    With ``in_lists``, only those in a list or a sequence, as the blocks of a transformer are. Two towers or
    stacks of one class, each with blocks of its own, are attributes.
    """
    siblings, kinds = _with_parameters(model), Counter[type]()
    if isinstance(model, _CONTAINERS) or not in_lists:
        kinds.update(type(one) for one in siblings if any(one.children()) and not _is_container(one))
    return [
        block
        for one in siblings
        for block in ([one] if kinds[type(one)] > 1 else _blocks(one, in_lists=in_lists))
    ]


def _with_parameters(model: nn.Module) -> list[nn.Module]:
    return [one for one in model.children() if any(True for _ in one.parameters())]


def _is_container(module: nn.Module) -> bool:
    """Return whether a module is a plain list or sequence; a block may be of a class derived from one."""
    return type(module) in _CONTAINERS


def _uses(module: nn.Module) -> Counter[int]:
    """Return how often each parameter of a module stands in it, by its identity."""
    return Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))

"""Find what a script has built: wrappers, models, loaders, and what cannot be switched off."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from compare.schema.metered import Unswitched

_SHARDS = "It keeps only a part of the model on each rank, so a step without communication is impossible."


class _Kind(NamedTuple):
    """A class whose communication cannot be switched off."""

    module: str
    name: str
    why: str
    arm: str = ""


_UNSWITCHABLE = (
    _Kind("torch.distributed.fsdp", "FullyShardedDataParallel", _SHARDS, "fsdp"),
    _Kind("torch.distributed.fsdp", "FSDPModule", _SHARDS, "fsdp"),
    _Kind(
        "torch.distributed.optim",
        "ZeroRedundancyOptimizer",
        "Each rank updates only a part of the parameters, so a step without communication is impossible.",
        "zero",
    ),
    _Kind(
        "torch.distributed.pipelining.schedules",
        "_PipelineSchedule",
        "Each rank computes only a part of the model, so a step without communication is impossible.",
        "pipeline",
    ),
    _Kind(
        "fairscale.optim.oss", "OSS", "Each rank sends the parameters that it updated to all others.", "zero"
    ),
    _Kind("fairscale.nn.data_parallel", "ShardedDataParallel", _SHARDS, "zero"),
    _Kind("deepspeed", "DeepSpeedEngine", "DeepSpeed synchronises inside its own engine.", "zero"),
)


def objects_of(*kinds: type) -> list[Any]:
    """Return all live objects of some classes, without asking the objects themselves."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), kinds)]


def class_of(module: str, name: str) -> type | None:
    """Return a class of a module, if the script has imported that module."""
    return getattr(sys.modules.get(module), name, None)


def find_unswitchable() -> list[Unswitched]:
    """Return each kind of object in this process whose communication cannot be switched off."""
    known = [(kind, class_of(kind.module, kind.name)) for kind in _UNSWITCHABLE]
    classes = [found for _, found in known if found]
    kinds = {type(thing) for thing in (objects_of(*classes) if classes else ())}
    return [
        Unswitched(name=kind.name.lstrip("_"), why=kind.why, arm=kind.arm)
        for kind, found in known
        if found and any(issubclass(one, found) for one in kinds)
    ]


def roots_with(parameters: Sequence[Any]) -> list[Any]:
    """Return the outermost modules that hold some of the parameters."""
    import torch

    wanted = {id(parameter) for parameter in parameters}
    holding = [
        module
        for module in objects_of(torch.nn.Module)
        if any(id(parameter) in wanted for parameter in module.parameters())
    ]
    inner = {id(part) for module in holding for part in module.modules() if part is not module}
    return [module for module in holding if id(module) not in inner]


def copies_of(models: Sequence[Any], modules: Sequence[Any]) -> list[Any]:
    """Return other modules with parameters of the same shapes, such as a moving average of a model."""
    shapes = [_shapes(model) for model in models]
    parts = {id(part) for model in models for part in model.modules()}
    return [module for module in modules if id(module) not in parts and _shapes(module) in shapes]


def _shapes(module: Any) -> list[Any]:
    return [tuple(parameter.shape) for parameter in module.parameters()]

"""Find the ways of synchronising that a script uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from compare.meter.by_hand import ByHand
from compare.meter.ddp import Ddp
from compare.meter.found import class_of, objects_of, roots_with
from compare.meter.horovod import Horovod, is_horovod
from compare.meter.ways import Way


def find_ways(optimizers: Sequence[Any]) -> list[Way]:
    """Return what synchronises the gradients of some optimizers; empty if nothing is known to.

    Their order, and that of their models, is the same on all ranks.
    """
    wrapper = class_of("torch.nn.parallel", "DistributedDataParallel")
    if wrappers := (objects_of(wrapper) if wrapper else []):
        return [Ddp(one) for one in _in_order(wrappers, _parameters_of(optimizers))]
    if by_horovod := [optimizer for optimizer in optimizers if is_horovod(optimizer)]:
        return [Horovod(one, _models_of([one]), number) for number, one in enumerate(by_horovod)]
    if dist.is_available() and dist.is_initialized():
        return [ByHand(optimizers, _models_of(optimizers))]
    return []


def _models_of(optimizers: Sequence[Any]) -> list[Any]:
    parameters = _parameters_of(optimizers)
    return _in_order(roots_with(parameters), parameters)


def _parameters_of(optimizers: Sequence[Any]) -> list[Any]:
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return [parameter for group in groups for parameter in group["params"]]


def _in_order(modules: Sequence[Any], parameters: Sequence[Any]) -> list[Any]:
    """Sort modules by the first of the parameters that they hold; the garbage collector has no order."""
    places = {id(parameter): place for place, parameter in enumerate(parameters)}
    last = len(places)
    return sorted(
        modules,
        key=lambda module: min((places.get(id(one), last) for one in module.parameters()), default=last),
    )

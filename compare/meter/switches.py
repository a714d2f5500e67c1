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
    """Return what synchronises the gradients of some optimizers; empty if nothing is known to."""
    wrapper = class_of("torch.nn.parallel", "DistributedDataParallel")
    if wrappers := (objects_of(wrapper) if wrapper else []):
        return [Ddp(one) for one in wrappers]
    if by_horovod := [optimizer for optimizer in optimizers if is_horovod(optimizer)]:
        return [Horovod(optimizer, _models_of([optimizer])) for optimizer in by_horovod]
    if dist.is_available() and dist.is_initialized():
        return [ByHand(optimizers, _models_of(optimizers))]
    return []


def _models_of(optimizers: Sequence[Any]) -> list[Any]:
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return roots_with([parameter for group in groups for parameter in group["params"]])

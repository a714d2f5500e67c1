"""Provide a group whose all-reduce is Ringside's sum in shared memory, so that it can be timed alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import nn

from backends.base import BackendError, Facts
from backends.collectives import Buffers
from backends.groups.torch_group import TorchGroup
from backends.shared_memory.sum import SharedSum


class SharedMemoryGroup(TorchGroup):
    """A process group of torch whose only timed collective is a sum in memory that all ranks map.

    The process group is used to set up the memory, but not for the sum.
    """

    name: ClassVar[str] = "shared memory"
    _last_sum: SharedSum | None = None

    def prepare(self, buffers: Buffers) -> Callable[[], torch.Tensor]:
        if buffers.collective != "all_reduce":
            raise BackendError(f"Ringside's shared memory has no {buffers.collective}, only all_reduce")
        if buffers.operation != "sum":
            raise BackendError(f"Ringside's shared memory has no operation {buffers.operation}, only sum")
        # A dtype that torch cannot add up fails here on all ranks, but in the call only on some of them.
        buffers.target[:1].add_(buffers.target[:1])
        tensors = [buffers.target]
        self._last_sum = shared = SharedSum([nn.Parameter(buffers.target, requires_grad=False)], self)

        def call() -> torch.Tensor:
            shared.reduce(tensors)
            return shared.views[0]

        return call

    def attest(self) -> Facts:
        sum_facts = self._last_sum.attest() if self._last_sum else {}
        return super().attest() | {"library": "Ringside's sum in shared memory"} | sum_facts

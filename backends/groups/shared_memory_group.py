"""Sum in memory that the ranks of one host map."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import nn

from backends.base import BackendError, Buffers, Facts
from backends.groups.torch_group import TorchGroup
from backends.shared_memory.sum import SharedSum


class SharedMemoryGroup(TorchGroup):
    """A process group whose ``prepare`` returns a sum in shared memory.

    Ranks use the process group to set up the memory, but not for the sum.
    """

    name: ClassVar[str] = "shared memory"
    _last: SharedSum | None = None

    def prepare(self, buffers: Buffers) -> Callable[[], torch.Tensor]:
        if buffers.collective != "all_reduce":
            raise BackendError(f"Ringside's shared memory has no {buffers.collective}, only all_reduce")
        if buffers.operation != "sum":
            raise BackendError(f"Ringside's shared memory has no operation {buffers.operation}, only sum")
        # A dtype that torch cannot add up fails here on all ranks, but in the call only on some of them.
        buffers.target[:1].add_(buffers.target[:1])
        tensors = [buffers.target]
        self._last = shared = SharedSum([nn.Parameter(buffers.target, requires_grad=False)], self)

        def call() -> torch.Tensor:
            shared.reduce(tensors)
            return shared.views[0]

        return call

    def attest(self) -> Facts:
        summed = self._last.attest() if self._last else {}
        return super().attest() | {"library": "Ringside's sum in shared memory"} | summed

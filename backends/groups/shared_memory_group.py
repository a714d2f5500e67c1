"""Sum in memory that the ranks of one host map."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import nn

from backends.base import BackendError
from backends.groups.torch_group import TorchGroup
from backends.shared_memory.sum import SharedSum

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from backends.base import Exchange, Facts


class SharedMemoryGroup(TorchGroup):
    """A process group whose ``prepare`` sums in shared memory.

    The process group agrees on the memory, and takes no part in the sum.
    """

    name: ClassVar[str] = "shared memory"
    _last: SharedSum | None = None

    def prepare(self, exchange: Exchange) -> Callable[[], torch.Tensor]:
        if exchange.collective != "all_reduce":
            raise BackendError(f"Ringside's shared memory has no {exchange.collective}, only all_reduce")
        if exchange.operation != "sum":
            raise BackendError(f"Ringside's shared memory has no operation {exchange.operation}, only sum")
        # A dtype that torch cannot add up fails here on all ranks. The call would fail on some alone.
        exchange.target[:1].add_(exchange.target[:1])
        tensors = [exchange.target]
        self._last = shared = SharedSum([nn.Parameter(exchange.target, requires_grad=False)], self)

        def call() -> torch.Tensor:
            shared.reduce(tensors)
            return shared.views[0]

        return call

    def attest(self) -> Facts:
        summed = self._last.attest() if self._last else {}
        return super().attest() | {"library": "Ringside's sum in shared memory"} | summed

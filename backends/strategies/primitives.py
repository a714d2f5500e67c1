"""Sum gradients by the simpler collectives from which an all-reduce can be built.

Every form ends with the same sum on all ranks, but they differ in how often and how much a rank sends. With
N ranks and gradients of S bytes:

- ``ring``: 2 (N - 1) messages of S / N bytes, all to the right neighbour
- ``reduce_broadcast``: a reduce of S bytes to rank 0, which then broadcasts the sum
- ``reduce_scatter``: S (N - 1) / N bytes twice; each rank sums one part, and then all gather the parts
- ``all_gather``: S bytes to every other rank; each rank sums all gradients itself
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from backends.base import Facts, Group, Options
from backends.groups.torch_group import pass_on
from backends.strategies.reducer import Bucket, Reducer, by_dtype


def ring(tensor: torch.Tensor, rank: int, world: int) -> None:
    """Sum a flat tensor over ``world`` ranks in place, by messages to the right neighbour.

    First each part travels around the ring, and every rank adds its own values to it. Then the sums travel
    around the ring.
    """
    parts = tensor.tensor_split(world)
    incoming = torch.empty_like(parts[0])  # no part is larger
    for step in range(world - 1):
        own = parts[(rank - step - 1) % world]
        received = incoming[: own.numel()]
        pass_on(parts[(rank - step) % world], received, rank, world)
        own += received
    for step in range(world - 1):
        pass_on(parts[(rank + 1 - step) % world], parts[(rank - step) % world], rank, world)


def reduce_broadcast(tensor: torch.Tensor, rank: int, world: int) -> None:
    """Sum a tensor in place: reduce it to rank 0, which broadcasts the sum."""
    del rank, world
    dist.reduce(tensor, dst=0)
    dist.broadcast(tensor, src=0)


def reduce_scatter(tensor: torch.Tensor, rank: int, world: int) -> None:
    """Sum a flat tensor in place: each rank sums one of ``world`` equal parts, and all gather them."""
    del rank
    own = torch.empty_like(tensor[: tensor.numel() // world])
    dist.reduce_scatter_tensor(own, tensor)
    dist.all_gather_into_tensor(tensor, own)


def all_gather(tensor: torch.Tensor, rank: int, world: int) -> None:
    """Sum a flat tensor in place: each rank gathers the tensors of all ranks, and adds them up."""
    del rank
    gathered = tensor.new_empty(world * tensor.numel())
    dist.all_gather_into_tensor(gathered, tensor)
    torch.sum(gathered.view(world, -1), 0, out=tensor)


FORMS: dict[str, Callable[[torch.Tensor, int, int], None]] = {
    "ring": ring,
    "reduce_broadcast": reduce_broadcast,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
}


class PrimitiveReducer(Reducer):
    """One sum of all gradients of a dtype, by the function in ``FORMS`` that ``mode`` names."""

    def __init__(self, parameters: list[nn.Parameter], group: Group, options: Options) -> None:
        super().__init__(parameters, group, options)
        self.sum = FORMS[str(options["mode"])]
        self.buckets = [Bucket(its, multiple=group.world_size) for its in by_dtype(parameters)]

    def reduce(self) -> None:
        for bucket in self.buckets:
            bucket.collect()
            self._sum(bucket.padded)

    def make_replay(self) -> Callable[[], None]:
        buffers = [torch.zeros_like(bucket.padded) for bucket in self.buckets]

        def run() -> None:
            for buffer in buffers:
                self._sum(buffer)

        return run

    def attest(self) -> Facts:
        return {"form": self.sum.__name__}

    def _sum(self, tensor: torch.Tensor) -> None:
        if self.group.world_size > 1:
            self.sum(tensor, self.group.rank, self.group.world_size)

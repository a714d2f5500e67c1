"""Join MPI through mpi4py, for tensors in host memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Self

import mpi4py
import torch
from mpi4py import MPI

from backends import evidence, single_copy
from backends.arms.shared import MPI_LIBRARY
from backends.base import BackendError, Facts, Group, Options, Placement, Wait
from backends.collectives import Buffers

_OPERATIONS = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX}
_LIBRARY_NAMES = {"openmpi": "Open MPI", "mpich": "MPICH"}
"""The names by which MPI libraries report themselves, by the choices of the option ``library``."""


class MPIGroup(Group):
    """All ranks of a launch, which are those of ``MPI.COMM_WORLD``."""

    name: ClassVar[str] = "mpi"
    unsupported_dtypes: ClassVar[frozenset[str]] = frozenset({"torch.bfloat16", "torch.float16"})

    @classmethod
    def join(
        cls, placement: Placement, device: torch.device, options: Options, timeout_seconds: float
    ) -> Self:
        del timeout_seconds  # MPI has no timeout, so only the rank's watchdog ends a wait
        if device.type != "cpu":
            raise BackendError(
                "mpi averages tensors in host memory. Run it with --device cpu, or leave it out."
            )
        world = MPI.COMM_WORLD
        if (world.rank, world.size) != (placement.rank, placement.world_size):
            raise BackendError(
                f"MPI has rank {world.rank} of {world.size}, but the launcher has {placement.rank} of "
                f"{placement.world_size}. Probably mpi4py uses another MPI than the mpirun that started it. "
                "Put the mpirun of mpi4py's MPI first on PATH."
            )
        needed = _LIBRARY_NAMES[str(MPI_LIBRARY.value_in(options))]
        loaded = evidence.mpi_library(MPI.Get_library_version())
        if not loaded.startswith(needed):
            raise BackendError(
                f"the arm needs {needed}, but mpi4py has loaded {loaded}. Unset LD_PRELOAD and "
                "LD_LIBRARY_PATH if they are set, and remove any other mpi4py from PYTHONPATH."
            )
        return cls(placement, device)

    def barrier(self) -> None:
        MPI.COMM_WORLD.Barrier()

    def all_reduce_(self, tensor: torch.Tensor) -> None:
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, tensor.numpy())

    def all_reduce_start_(self, tensor: torch.Tensor) -> Wait:
        # The request keeps the array alive, and the array its tensor's memory.
        return MPI.COMM_WORLD.Iallreduce(MPI.IN_PLACE, tensor.numpy()).Wait

    def broadcast_(self, tensor: torch.Tensor, root: int = 0) -> None:
        MPI.COMM_WORLD.Bcast(tensor.numpy(), root=root)

    def _collectives(self, buffers: Buffers) -> Mapping[str, Callable[[], torch.Tensor]]:
        world = MPI.COMM_WORLD
        following, previous = (self.rank + 1) % self.world_size, (self.rank - 1) % self.world_size
        # Collectives that only move data get bytes, so that they take every dtype.
        source, target = (tensor.view(torch.uint8).numpy() for tensor in (buffers.source, buffers.target))
        return {
            "all_gather": buffers.calling(world.Allgather, source, target),
            "broadcast": buffers.calling(world.Bcast, target, 0),
            "all_to_all": buffers.calling(world.Alltoall, source, target),
            "send_recv": buffers.calling(world.Sendrecv, source, following, 0, target, previous, 0),
            "barrier": buffers.calling(world.Barrier),
        }

    def prepare(self, buffers: Buffers) -> Callable[[], torch.Tensor]:
        if buffers.collective not in {"all_reduce", "reduce_scatter", "reduce"}:
            return super().prepare(buffers)
        if buffers.operation not in _OPERATIONS:
            raise BackendError(f"MPI has no operation {buffers.operation}")
        world, operation = MPI.COMM_WORLD, _OPERATIONS[buffers.operation]
        source, target = buffers.source.numpy(), buffers.target.numpy()
        if buffers.collective == "all_reduce":
            return buffers.calling(world.Allreduce, MPI.IN_PLACE, target, operation)
        if buffers.collective == "reduce_scatter":
            return buffers.calling(world.Reduce_scatter_block, source, target, operation)
        return buffers.calling(
            world.Reduce, *((MPI.IN_PLACE, target) if self.rank == 0 else (source, None)), operation
        )

    def attest(self) -> Facts:
        library = evidence.mpi_library(MPI.Get_library_version())
        name, _, number = library.rpartition(" ")
        versions = {"mpi4py": mpi4py.__version__, name: number, "torch": str(torch.__version__)}
        transport = evidence.mpi_transport(self.world_size)
        facts = {"library": library, "transport": transport, "versions": versions}
        return facts | single_copy.attest(self, transport)

    def leave(self) -> None:
        if not MPI.Is_finalized():
            MPI.Finalize()

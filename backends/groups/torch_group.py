"""Join torch.distributed: NCCL between GPUs, Gloo between CPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, ClassVar, Self, cast

import torch
import torch.distributed as dist

from backends import evidence
from backends.arms.shared import PROCESS_GROUP
from backends.base import BackendError, Facts, Group, Options, Placement, Wait
from backends.collectives import Buffers, Collectives
from backends.groups.recorded import all_gather_, record_collectives, reduce_scatter_

_OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
}


class TorchGroup(Group):
    """All ranks of a launch, which are torch's default process group.

    The ranks find each other through the address and port that torchrun puts into the environment.
    """

    name: ClassVar[str] = "torch.distributed"

    @classmethod
    def join(
        cls, placement: Placement, device: torch.device, options: Options, timeout_seconds: float
    ) -> Self:
        backend = str(PROCESS_GROUP.value_in(options))
        if backend == "auto":
            backend = "nccl" if device.type == "cuda" else "gloo"
        if backend == "nccl" and device.type != "cuda":
            raise BackendError(
                "NCCL needs CUDA tensors, but the run is on the CPU. Use process_group=gloo or --device cuda."
            )
        if backend == "nccl" and not dist.is_nccl_available():
            raise BackendError(
                "this build of torch has no NCCL. Install a CUDA build, or use process_group=gloo."
            )
        dist.init_process_group(
            backend,
            rank=placement.rank,
            world_size=placement.world_size,
            timeout=timedelta(seconds=timeout_seconds),
            # With NCCL bound to its device, a wrong placement fails here, not in the first step.
            device_id=device if backend == "nccl" else None,
        )
        return cls(placement, device)

    def barrier(self) -> None:
        dist.barrier()

    def all_reduce_(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)

    def all_reduce_start_(self, tensor: torch.Tensor) -> Wait:
        work = dist.all_reduce(tensor, async_op=True)
        if work is None:
            raise BackendError(
                f"Rank {self.rank} is not in torch's default process group. Do not replace that group in "
                "your code."
            )
        return work.wait

    def broadcast_(self, tensor: torch.Tensor, root: int = 0) -> None:
        dist.broadcast(tensor, src=root)

    def _collectives(self, buffers: Buffers) -> Mapping[str, Callable[[], torch.Tensor]]:
        source, target, operation = buffers.source, buffers.target, _OPERATIONS[buffers.operation]
        return {
            "all_reduce": buffers.calling(dist.all_reduce, target, operation),
            "all_gather": buffers.calling(all_gather_, target, source),
            "reduce_scatter": buffers.calling(reduce_scatter_, target, source, operation),
            "broadcast": buffers.calling(dist.broadcast, target, 0),
            "reduce": buffers.calling(dist.reduce, target, 0, operation),
            "all_to_all": buffers.calling(dist.all_to_all_single, target, source),
            "send_recv": buffers.calling(pass_on, source, target, self.rank, self.world_size),
            "barrier": buffers.calling(self.barrier),
        }

    def record(self, step: Callable[[], object]) -> Collectives | None:
        return record_collectives(step, self.device)

    def attest(self) -> Facts:
        backend, world = dist.get_backend(), cast("Any", dist.group.WORLD)
        versions = {"torch": str(torch.__version__)}
        if backend == "nccl":
            versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
            transport = "NCCL"
        else:
            store = int(os.environ.get("MASTER_PORT", "0"))
            transport = evidence.tcp_transport(self.world_size, except_ports=(store,))
        return {
            "library": f"torch.distributed {backend}",
            # One name may stand for several: `nccl` is ProcessGroupNCCL2 from torch 2.15 on.
            "process_group": type(world._get_backend(self.device)).__name__,  # noqa: SLF001
            "transport": transport,
            "versions": versions,
        }

    def leave(self) -> None:
        # Without this a Gloo program aborts at exit.
        dist.destroy_process_group()


def pass_on(sent: torch.Tensor, received: torch.Tensor, rank: int, world: int) -> None:
    """Send ``sent`` to the next rank, fill ``received`` from the previous rank, and wait for both.

    The ranks are 0 to ``world - 1``, and rank 0 comes after the last one.
    """
    if world == 1:
        received.copy_(sent)  # torch sends nothing to oneself
        return
    right, left = (rank + 1) % world, (rank - 1) % world
    both = [dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, received, left)]
    for work in dist.batch_isend_irecv(both):
        work.wait()

"""Train through Horovod's DistributedOptimizer.

The optimizer's hooks pass gradients to a background thread, which fuses and averages them.
"""

from __future__ import annotations

from functools import partial

import horovod.torch as hvd
import torch
from torch import nn

from backends.base import REPEATED, STRIDED, Facts, Group, MakeOptimizer, Options, Replica, Wait
from backends.collectives import Collectives
from backends.strategies.models import contiguous, require_summable, state_to_broadcast


class HorovodReplica(Replica):
    """A replica that waits for Horovod's background thread in ``sync``, so that the wait is timed alone."""

    unsupported = frozenset({STRIDED, REPEATED})

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        require_summable(model, group)
        state = state_to_broadcast(model)
        with contiguous(state.values()) as sent:
            hvd.broadcast_parameters(dict(zip(state, sent, strict=True)), root_rank=0)
        super().__init__(model, make_optimizer, group, options)
        # The optimizer is new on every rank, so its state is the same. Horovod's broadcast_optimizer_state
        # would take a step with zero gradients and change Adam's trajectory.
        self.distributed = hvd.DistributedOptimizer(
            self.optimizer,
            named_parameters=model.named_parameters(),
            compression=getattr(hvd.Compression, str(options["compression"])),
            op=hvd.Average,
        )
        self.optimizer = self.distributed

    def accumulate(self, passes: int) -> None:
        super().accumulate(passes)
        # Horovod adds up the passes' gradients, and divides only by ranks, as ``Replica`` defines it.
        self.distributed.set_backward_passes_per_step(passes)

    def sync(self) -> None:
        self.distributed.synchronize()

    def step(self) -> None:
        with self.distributed.skip_synchronize():
            self.distributed.step()
        self.forget_gradients()

    def library_bytes(self) -> int | None:
        return None  # how much of the fusion buffer is used cannot be read

    def attest(self) -> Facts:
        names = {hvd.Average: "average", hvd.Sum: "sum", hvd.Adasum: "adasum"}
        compression = self.distributed._compression.__name__  # noqa: SLF001 -- there is no public name
        return {
            "mode": "optimizer",
            "reduce_op": names.get(self.distributed.op, str(self.distributed.op)),
            "backward_passes_per_step": self.distributed.backward_passes_per_step,
            "compression": {"NoneCompressor": "none", "FP16Compressor": "fp16"}.get(compression, compression),
        }

    def collectives(self) -> Collectives | None:
        if self.attest()["compression"] != "none":
            return None  # the optimizer's hooks make smaller tensors, which cannot be sent alone
        gradients = [torch.zeros_like(p) for p in self.parameters if p.requires_grad]
        numbers = {id(gradient): number for number, gradient in enumerate(gradients)}

        def start(gradient: torch.Tensor) -> Wait:
            # One request per parameter, as the optimizer's hooks make them. Horovod decides which it fuses.
            name = f"alone.{numbers[id(gradient)]}"
            return partial(hvd.synchronize, hvd.allreduce_async_(gradient, name=name, op=hvd.Average))

        return Collectives.of(gradients, start)

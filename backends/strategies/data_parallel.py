"""Train in one process, on one device or on several GPUs by torch's ``nn.DataParallel``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from backends.base import BackendError, Batch, Facts, Group, Loss, MakeOptimizer, Options, Replica
from backends.strategies.models import cut_batch


class SingleReplica(Replica):
    """A replica that trains on the whole data set, in a launch with one process."""

    def attest(self) -> Facts:
        return super().attest() | {"reduce_op": "mean"}


class DataParallelReplica(SingleReplica):
    """A replica that copies the model to each GPU in every pass, and divides the batch among the GPUs."""

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        self.parts_per_pass = int(options["gpus"])
        available = torch.cuda.device_count() if group.device.type == "cuda" else 0
        if available < self.parts_per_pass:
            raise BackendError(
                f"gpus={self.parts_per_pass} needs {self.parts_per_pass} GPUs on one host, but torch finds "
                f"{available}. Without them nn.DataParallel silently returns the plain module. Leave this "
                "arm out."
            )
        self.gpus = list(range(self.parts_per_pass))
        self._wrapped = nn.DataParallel(model, device_ids=self.gpus)
        self._first_pass = True
        super().__init__(model, make_optimizer, group, options)

    @property
    def module(self) -> nn.DataParallel[nn.Module]:
        return self._wrapped

    def learn(self, batch: Batch, loss: Loss, on_phase: Callable[[str], None] = lambda _: None) -> None:
        before = torch.cuda.get_rng_state_all() if self._first_pass else []
        super().learn(batch, loss, on_phase)
        after = torch.cuda.get_rng_state_all() if self._first_pass else []
        self._first_pass = False
        if any(not torch.equal(*states) for states in zip(before, after, strict=True)):
            raise BackendError(
                "the model draws random numbers on several GPUs at once, so the reference on one GPU cannot "
                "repeat them. Leave out this arm, or dropout and other random layers."
            )

    def parts(self, batch: Batch) -> list[Batch]:
        return cut_batch(batch, self.parts_per_pass)

    def library_bytes(self) -> int | None:
        return None  # the copies of the model are on other GPUs

    def attest(self) -> Facts:
        return super().attest() | {"gpus": len(self._wrapped.device_ids)}

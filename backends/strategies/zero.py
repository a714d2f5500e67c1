"""Train through DDP with ZeroRedundancyOptimizer, which shards the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from backends.base import Facts, Group, MakeOptimizer, Options
from backends.collectives import Collectives
from backends.strategies.ddp import DDPReplica
from backends.strategies.models import require_one_dtype


class ZeroReplica(DDPReplica):
    """A replica whose optimizer updates one part of the parameters, and broadcasts it to all ranks."""

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        require_one_dtype(model, "zero")

        def make_part(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
            return make_optimizer(parameter for group in groups for parameter in group["params"])

        def make_sharded(parameters: Iterable[nn.Parameter]) -> ZeroRedundancyOptimizer:
            return ZeroRedundancyOptimizer(
                parameters,
                make_part,  # type: ignore[arg-type]  # it only calls it, with groups of the rank's parameters
                parameters_as_bucket_view=bool(options["parameters_as_bucket_view"]),
            )

        super().__init__(model, make_sharded, group, options)
        self.sharded: ZeroRedundancyOptimizer = self.optimizer  # type: ignore[assignment]  # made above
        self.optimizer = self.sharded.optim

    def step(self) -> None:
        self.sharded.step()
        self.forget_gradients()

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.sharded]

    def attest(self) -> Facts:
        return super().attest() | {"parameters_as_bucket_view": self.sharded.parameters_as_bucket_view}

    def collectives(self) -> Collectives | None:
        return None  # all-reduces and broadcasts are recorded in a step

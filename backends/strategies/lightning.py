"""Train through Lightning Fabric, which wraps the model in DDP and runs backward passes and steps."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import lightning_fabric
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import TorchElasticEnvironment
from lightning_fabric.strategies import DDPStrategy
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from backends.base import BackendError, Facts, Group, MakeOptimizer, Options
from backends.strategies.ddp import DDPReplica, ddp_arguments


class LightningReplica(DDPReplica):
    """A replica whose model Fabric wraps in DDP; it communicates over the process group of the arm."""

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        super().__init__(model, make_optimizer, group, options)
        self._fabric_optimizer: Any = self._fabric.setup_optimizers(self.optimizer)

    def _wrap(self, model: nn.Module, group: Group, options: Options) -> DistributedDataParallel:
        self._fabric = _make_fabric(group, options)
        self._fabric_module = self._fabric.setup_module(model, move_to_device=False)
        return next(m for m in self._fabric_module.modules() if isinstance(m, DistributedDataParallel))

    @property
    def module(self) -> nn.Module:
        return self._fabric_module

    def _in_pass(self) -> AbstractContextManager[None]:
        return self._fabric.no_backward_sync(self._fabric_module, enabled=not self._is_last_pass())

    def backward(self, loss: torch.Tensor) -> None:
        self._fabric.backward(loss)

    def step(self) -> None:
        self._fabric_optimizer.step()
        self.forget_gradients()

    def attest(self) -> Facts:
        return super().attest() | {
            "fabric": lightning_fabric.__version__,
            "fabric_strategy": type(self._fabric.strategy).__name__,
            "fabric_precision": self._fabric.strategy.precision.precision,
        }


def _make_fabric(group: Group, options: Options) -> Fabric:
    """Return a launched Fabric that uses the process group that this rank has joined.

    Raises:
        BackendError: the number of ranks on this host does not divide the number of all ranks.
    """
    placement = group.placement
    hosts, rest = divmod(placement.world_size, placement.local_world_size)
    if rest:
        raise BackendError(
            f"lightning: Fabric needs the same number of ranks on every host, but {placement.host} has "
            f"{placement.local_world_size} of all {placement.world_size}. "
            "Give all hosts the same slots, or leave this arm out."
        )
    fabric = Fabric(
        accelerator=group.device.type,
        num_nodes=hosts,
        # If it got a number of devices, Fabric would require a GPU for each rank, but ranks may share one.
        strategy=DDPStrategy(
            parallel_devices=[group.device] * placement.local_world_size, **ddp_arguments(options)
        ),
        # Fabric's word for "cast nothing". Its "64-true" would cast outputs to torch's default dtype.
        precision="32-true",
        plugins=[TorchElasticEnvironment()],
    )
    fabric.launch()
    return fabric

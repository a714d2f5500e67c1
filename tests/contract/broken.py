"""Strategies and groups with one fault each: the suite must notice every one of them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from backends.groups.torch_group import TorchGroup
from backends.strategies.averaging import AveragingReplica
from backends.strategies.local import LocalReplica

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.base import Facts, Group, Loss, MakeOptimizer, Options, Placement, Work


class NeverSyncs(LocalReplica):
    """A wrapper that forgets to communicate at all."""


class Sums(AveragingReplica):
    """A sum in the place of the mean."""

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


class SkipsAParameter(AveragingReplica):
    """The last rank takes part for one parameter, and then keeps its own share."""

    def sync(self) -> None:
        group = self.reducer.group
        own = next(self.model.parameters()).grad.clone()
        super().sync()
        if group.rank == group.world_size - 1:
            next(self.model.parameters()).grad = own


class NeverSteps(AveragingReplica):
    """Gradients are right, and nothing comes of them."""

    def step(self) -> None:
        self.optimizer.zero_grad()


class Unsharded(AveragingReplica):
    """Every rank trains on the same batches."""

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        super().__init__(model, make_optimizer, group, options)
        self.shard = (0, group.world_size)


class SharesOneShard(AveragingReplica):
    """No fault: ranks that share a model share a shard, here all of them, and see every global batch."""

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        super().__init__(model, make_optimizer, group, options)
        self.shard = (0, 1)


class TakesOneRanksBatch(SharesOneShard):
    """Trains on one rank's part of the global batch, though its shard is all of it."""

    def learn(self, inputs: torch.Tensor, targets: torch.Tensor, *others: Any) -> None:
        world = self.reducer.group.world_size
        super().learn(inputs.chunk(world)[0], targets.chunk(world)[0], *others)


class StartsApart(AveragingReplica):
    """Rank 0's parameters reach nobody."""

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        own = [p.detach().clone() for p in model.parameters()]
        super().__init__(model, make_optimizer, group, options)
        with torch.no_grad():
            for parameter, before in zip(model.parameters(), own, strict=True):
                parameter.copy_(before)


class Accumulates(AveragingReplica):
    """A step that leaves the gradients where the next backward adds to them."""

    def step(self) -> None:
        self.optimizer.step()


class StepsTheOptimizerFirst(AveragingReplica):
    """A step with zero gradients before the training: harmless to SGD, not to Adam."""

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        super().__init__(model, make_optimizer, group, options)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.step()


class TakesOnePassOfAll(AveragingReplica):
    """Averages what the first pass of a step has brought, and lets the others go by."""

    passes_done = 0

    def backward(self, loss: torch.Tensor) -> None:
        if self.passes_done % self.passes_per_step == 0:
            super().backward(loss)
        self.passes_done += 1


class Fuses(AveragingReplica):
    """No fault: forward and backward are one phase."""

    phases = ("backward", "sync", "step")

    def learn(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        loss: Loss,
        on_phase: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().learn(inputs, targets, loss)
        on_phase("backward")


class ReportsAPhaseTooMany(AveragingReplica):
    """Declares forward and backward as one phase, and reports both."""

    phases = ("backward", "sync", "step")


class CyclesByRank(AveragingReplica):
    """Communicates in another rhythm on every rank."""

    @property
    def cycle(self) -> int:
        return 1 + self.reducer.group.rank


class ReturnsAnOldModel(AveragingReplica):
    """Hands out the model that it started with as the whole one."""

    def whole(self) -> nn.Module:
        if not hasattr(self, "old"):
            self.old = copy.deepcopy(self.model)
        return self.old


class HoldsMoreThanItSays(AveragingReplica):
    """Counts half of the optimizer's state."""

    def held_bytes(self) -> Facts:
        held = super().held_bytes()
        return held | {"optimizer_state_bytes": held["optimizer_state_bytes"] // 2}


class HidesItsSync(AveragingReplica):
    """Communicates in a phase that it does not admit to."""

    phases = ("forward", "backward", "step")


class ReordersItsPhases(AveragingReplica):
    """Names its phases in an order in which they do not happen."""

    phases = ("forward", "sync", "backward", "step")


class WrapsItsModel(AveragingReplica):
    """Hands out a wrapper, whose parameters have other names, in the place of the plain model."""

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        super().__init__(model, make_optimizer, group, options)
        self.model = nn.Sequential(model)


class IgnoresItsBucketSize(AveragingReplica):
    """One bucket, however small it was asked to be."""

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        super().__init__(model, make_optimizer, group, {**options, "bucket_mb": 100.0})


class ForgetsAMessage(AveragingReplica):
    """Attests fewer bytes than travel."""

    def attest(self) -> Facts:
        return super().attest() | {"message_bytes": self.reducer.message_bytes()[1:]}


class AttestsObjects(AveragingReplica):
    """Says what it does in words that no result file can hold."""

    def attest(self) -> Facts:
        return {"reduce_op": torch.add, "mode": "flat"}


class SharesALocalRank(TorchGroup):
    """Every rank takes itself for the first of its host."""

    def __init__(self, placement: Placement, device: torch.device) -> None:
        super().__init__(replace(placement, local_rank=0), device)


class LeaksThroughItsBarrier(TorchGroup):
    """A barrier at which nobody waits."""

    def barrier(self) -> None:
        return


class RoundsItsSums(TorchGroup):
    """Half precision on the wire."""

    def all_reduce_(self, tensor: torch.Tensor) -> None:
        tensor.copy_(tensor.to(torch.bfloat16))
        super().all_reduce_(tensor)


class StartsNothing(TorchGroup):
    """Collectives that are started and never happen."""

    def all_reduce_start_(self, tensor: torch.Tensor) -> Work:
        return super().all_reduce_start_(tensor.clone())


class KnowsOneRoot(TorchGroup):
    """A broadcast that always comes from rank 0."""

    def broadcast_(self, tensor: torch.Tensor, root: int = 0) -> None:
        del root
        super().broadcast_(tensor, 0)


class HasNoTransport(TorchGroup):
    """Attests nothing of how its bytes travel."""

    def attest(self) -> Facts:
        return super().attest() | {"transport": ""}


class AttestsAnotherVersion(TorchGroup):
    """Attests a version that is not the one that was loaded."""

    def attest(self) -> Facts:
        return super().attest() | {"versions": {"torch": "1.0"}}


class ClaimsAController(TorchGroup):
    """Attests a controller that the arm did not ask for."""

    def attest(self) -> Facts:
        return super().attest() | {"controller": "mpi"}

"""Strategies and groups with one fault each, which the suite must find."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from backends.base import Replica
from backends.groups.torch_group import TorchGroup
from backends.strategies.averaging import AveragingReplica
from backends.strategies.fsdp import FSDPReplica
from backends.strategies.local_sgd import LocalSGDReplica
from backends.strategies.pipeline import PipelineReplica
from backends.strategies.zero import ZeroReplica


class NeverSyncs(Replica):
    """A wrapper that never communicates."""


class Sums(AveragingReplica):
    """A sum instead of the mean."""

    def backward(self, loss):
        loss.backward()


class SkipsAParameter(AveragingReplica):
    """The last rank keeps its own gradient of one parameter."""

    def sync(self):
        own = next(self.model.parameters()).grad.clone()
        super().sync()
        if self.group.rank == self.group.world_size - 1:
            next(self.model.parameters()).grad = own


class NeverSteps(AveragingReplica):
    """Gradients are right, but no step uses them."""

    def step(self):
        self.optimizer.zero_grad()


class Unsharded(AveragingReplica):
    """Every rank trains on the same batches."""

    def __init__(self, model, make_optimizer, group, options):
        super().__init__(model, make_optimizer, group, options)
        self.shard = (0, group.world_size)


class StartsApart(AveragingReplica):
    """Every rank keeps its own initial parameters."""

    def __init__(self, model, make_optimizer, group, options):
        own = [p.detach().clone() for p in model.parameters()]
        super().__init__(model, make_optimizer, group, options)
        with torch.no_grad():
            for parameter, before in zip(model.parameters(), own, strict=True):
                parameter.copy_(before)


class Accumulates(AveragingReplica):
    """A step that keeps the gradients, so that the next backward adds."""

    def step(self):
        self.optimizer.step()


class StepsTheOptimizerFirst(AveragingReplica):
    """A step with zero gradients before the training, which changes Adam."""

    def __init__(self, model, make_optimizer, group, options):
        super().__init__(model, make_optimizer, group, options)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.step()


class TakesOnePassOfAll(AveragingReplica):
    """Averages only the first pass of a step."""

    passes_done = 0

    def backward(self, loss):
        if self.passes_done % self.passes_per_step == 0:
            super().backward(loss)
        self.passes_done += 1


def declaring(*declared):
    """Return a strategy that declares other phases than it has."""

    class Declaring(AveragingReplica):
        phases = declared

    return Declaring


ReportsAPhaseTooMany = declaring("backward", "sync", "step")
HidesItsSync = declaring("forward", "backward", "step")
ReordersItsPhases = declaring("forward", "sync", "backward", "step")


class CyclesByRank(AveragingReplica):
    """Communicates in a different cycle on every rank."""

    @property
    def cycle(self):
        return 1 + self.group.rank


class ReturnsAnOldModel(AveragingReplica):
    """Returns the initial model as the whole one."""

    def whole(self):
        if not hasattr(self, "old"):
            self.old = copy.deepcopy(self.model)
        return self.old


class HoldsMoreThanItSays(AveragingReplica):
    """Counts half of the optimizer's state."""

    def held_bytes(self):
        held = super().held_bytes()
        return held | {"optimizer_state_bytes": held["optimizer_state_bytes"] // 2}


class WrapsItsModel(AveragingReplica):
    """Returns a wrapper with other parameter names instead of the plain model."""

    def __init__(self, model, make_optimizer, group, options):
        super().__init__(model, make_optimizer, group, options)
        self.model = nn.Sequential(model)


class IgnoresItsBucketSize(AveragingReplica):
    """Makes one bucket for every bucket size."""

    def __init__(self, model, make_optimizer, group, options):
        super().__init__(model, make_optimizer, group, {**options, "bucket_mb": 100.0})


class ForgetsAMessage(AveragingReplica):
    """Attests fewer bytes than travel."""

    def attest(self):
        return super().attest() | {"message_bytes": self.reducer.message_bytes()[1:]}


class AttestsObjects(AveragingReplica):
    """Attests an object that JSON cannot hold."""

    def attest(self):
        return {"reduce_op": torch.add, "mode": "flat"}


class LosesAShard(FSDPReplica):
    """The last rank never updates its shard of the parameters."""

    def step(self):
        if dist.get_rank() == dist.get_world_size() - 1:
            self.forget_gradients()
        super().step()


class KeepsAStaleShard(ZeroReplica):
    """The optimizer of the last rank's part takes its first step alone."""

    steps_done = 0

    def step(self):
        if self.steps_done and dist.get_rank() == dist.get_world_size() - 1:
            self.forget_gradients()
        self.steps_done += 1
        super().step()


class SkipsAMicrobatch(PipelineReplica):
    """The last microbatch has no part in the loss."""

    def learn(self, batch, loss, *others):
        def without_the_last(model, part):
            whole, own = batch[1], part[1]
            kept = 0.0 if own.data_ptr() == whole[-len(own) :].data_ptr() else 1.0
            return kept * loss(model, part)

        super().learn(batch, without_the_last, *others)


class NeverAverages(LocalSGDReplica):
    """Ranks train apart, and the mean is taken at the end alone."""

    def step(self):
        Replica.step(self)
        self._steps_alone += 1


class SharesALocalRank(TorchGroup):
    """Every rank is the first of its host."""

    def __init__(self, placement, device):
        super().__init__(replace(placement, local_rank=0), device)


class LeaksThroughItsBarrier(TorchGroup):
    """A barrier that returns at once."""

    def barrier(self):
        return


class RoundsItsSums(TorchGroup):
    """Half precision on the wire."""

    def all_reduce_(self, tensor):
        tensor.copy_(tensor.to(torch.bfloat16))
        super().all_reduce_(tensor)


class StartsNothing(TorchGroup):
    """Collectives that start and change nothing."""

    def all_reduce_start_(self, tensor):
        return super().all_reduce_start_(tensor.clone())


class KnowsOneRoot(TorchGroup):
    """A broadcast that always comes from rank 0."""

    def broadcast_(self, tensor, root=0):
        del root
        super().broadcast_(tensor, 0)


def attesting(**wrong):
    """Return a group that attests something wrong."""

    class Attesting(TorchGroup):
        def attest(self):
            return super().attest() | wrong

    return Attesting


HasNoTransport = attesting(transport="")
AttestsAnotherVersion = attesting(versions={"torch": "1.0"})

"""A distributed step of the user's own, behind the seam."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from backends.base import BackendError
from backends.strategies.own import OwnReplica

GROUP = SimpleNamespace(rank=1, world_size=3)


def plain_sgd(parameters):
    return torch.optim.SGD(parameters, lr=1.0)


def make_step(model, make_optimizer):
    optimizer = make_optimizer(model.parameters())

    def step(batch):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return step


def a_replica(step=make_step):
    return OwnReplica(nn.Linear(2, 1), plain_sgd, GROUP, {}, make_step=step)


def test_own_replica_learns_by_the_users_step_alone():
    replica, phases = a_replica(), []
    before = replica.whole().weight.detach().clone()
    replica.learn(torch.ones(1, 2), None, phases.append)
    assert torch.equal(replica.whole().weight, before - 1)
    replica.sync()
    replica.step()
    assert torch.equal(replica.whole().weight, before - 1)
    assert phases == list(replica.phases) == ["backward"]
    assert replica.shard == (1, 3)
    assert replica.takes_whole_step


def test_own_replica_needs_an_optimizer_that_the_proof_can_choose():
    def own(model, make_optimizer):
        optimizer = torch.optim.Adam(model.parameters())
        return lambda batch: optimizer.step()

    with pytest.raises(BackendError, match=r"Write optimizer = make_optimizer\(model.parameters\(\)\)"):
        a_replica(own)


def test_own_replica_takes_one_batch_a_step():
    a_replica().accumulate(1)
    with pytest.raises(BackendError, match="Leave out --accumulate"):
        a_replica().accumulate(2)

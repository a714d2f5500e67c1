"""Test what a replica of local SGD holds and attests."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from backends.strategies.local_sgd import LocalSGDReplica

BATCH = torch.ones(4, 3), torch.ones(4, 2)


def replica_of(group, *, optimizer=torch.optim.SGD, period=1, outer="none"):
    options = {"period": period, "outer": outer}
    return LocalSGDReplica(nn.Linear(3, 2), lambda p: optimizer(p, lr=0.1), group, options)


def take_step(replica):
    replica.learn(BATCH, lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
    replica.sync()
    replica.step()


@pytest.mark.parametrize(
    ("changes", "reduce_op"),
    [
        ({}, "mean"),
        ({"period": 8}, "mean of parameters, period 8"),
        ({"optimizer": torch.optim.Adam}, "mean of parameters, period 1"),
        ({"outer": "nesterov"}, "mean of parameters, period 1"),
    ],
)
def test_localsgd_attests_averaged_gradients_only_where_a_step_is_linear(group, changes, reduce_op):
    assert replica_of(group, **changes).attest()["reduce_op"] == reduce_op


def test_localsgd_within_a_period_returns_a_copy(group):
    replica = replica_of(group, period=2)
    take_step(replica)
    copied = replica.whole()
    assert copied is not replica.model
    assert torch.equal(copied.weight, replica.model.weight)
    with torch.no_grad():
        copied.weight.zero_()
    assert replica.model.weight.any()
    take_step(replica)
    assert replica.whole() is replica.model


def test_localsgd_counts_the_state_of_its_outer_optimizer(group):
    assert "outer_bytes" not in replica_of(group).held_bytes()
    replica = replica_of(group, outer="nesterov")
    take_step(replica)
    held = replica.held_bytes()
    assert held["outer_bytes"] == 2 * held["parameter_bytes"]

"""Build the small data, models and steps that the cases share."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from compare.workload import Workload

WIDTH = 6


def rows(count=256, width=WIDTH):
    """Return regression samples whose target is no linear function."""
    made = torch.Generator().manual_seed(3)
    inputs = torch.randn(count, width, generator=made)
    return torch.utils.data.TensorDataset(inputs, (inputs**2).sum(1, keepdim=True) / width)


def mlp():
    """Return a small model without dead units."""
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 1))


def mse(model, batch):
    """Return the mean squared error."""
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def sgd(parameters):
    """Make plain SGD."""
    return torch.optim.SGD(parameters, lr=0.05)


def workload(**changes):
    """Return a workload, with other parts where they are given."""
    parts = {"model": None, "data": None, "loss": mse, "optimizer": sgd} | changes
    parts["model"] = mlp() if parts["model"] is None else parts["model"]
    parts["data"] = rows() if parts["data"] is None else parts["data"]
    return Workload(**parts)


def ddp_step(loss=mse, **ddp):
    """Return the step of the tutorials: DDP, backward, step."""

    def own_step(model, make_optimizer):
        wrapped = DistributedDataParallel(model, **ddp)
        optimizer = make_optimizer(wrapped.parameters())

        def step(batch):
            optimizer.zero_grad()
            loss(wrapped, batch).backward()
            optimizer.step()

        return step

    return own_step

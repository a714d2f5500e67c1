"""Build the small data, models and steps that the cases share."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from compare.workload import Workload

WIDTH = 6
SAMPLES = 256


def rows(count=SAMPLES, width=WIDTH):
    """Return regression samples whose target is no linear function."""
    made = torch.Generator().manual_seed(3)
    inputs = torch.randn(count, width, generator=made)
    return torch.utils.data.TensorDataset(inputs, (inputs**2).sum(1, keepdim=True) / width)


def series(count=SAMPLES, length=5, width=4):
    """Return sequences with a target each."""
    made = torch.Generator().manual_seed(4)
    inputs = torch.randn(count, length, width, generator=made)
    return torch.utils.data.TensorDataset(inputs, inputs[:, :, 0].sum(1, keepdim=True))


def images(count=SAMPLES):
    """Return images of 6 x 6 pixels with a class each."""
    made = torch.Generator().manual_seed(5)
    pixels = torch.randn(count, 3, 6, 6, generator=made)
    return torch.utils.data.TensorDataset(pixels, (pixels[:, 0].sum((1, 2)) > 0).long())


def words(count=SAMPLES, rows=20):
    """Return lists of four words with a target each."""
    made = torch.Generator().manual_seed(6)
    chosen = torch.randint(1, rows, (count, 4), generator=made)
    return torch.utils.data.TensorDataset(chosen, chosen.float().mean(1, keepdim=True) / rows)


def mlp():
    """Return a small model without dead units."""
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 1))


def mse(model, batch):
    """Return the mean squared error."""
    inputs, targets = batch
    found = model(inputs)
    return nn.functional.mse_loss(found, targets.to(found.dtype))


def cross_entropy(model, batch):
    """Return the mean cross entropy of classes."""
    inputs, classes = batch
    return nn.functional.cross_entropy(model(inputs), classes)


def sgd(parameters):
    """Make plain SGD."""
    return torch.optim.SGD(parameters, lr=0.05)


def workload(**changes):
    """Return a workload, with other parts where they are given."""
    parts = {"loss": mse, "optimizer": sgd} | changes
    parts["model"] = parts.get("model") or mlp()
    parts["data"] = parts.get("data") or rows()
    return Workload(**parts)


def ddp_step(loss=mse, *, after_backward=lambda model: None, after_step=lambda optimizer: None, **ddp):
    """Return the step of the tutorials: DDP, backward, step."""

    def own_step(model, make_optimizer):
        wrapped = DistributedDataParallel(model, **ddp)
        optimizer = make_optimizer(wrapped.parameters())

        def step(batch):
            optimizer.zero_grad()
            loss(wrapped, batch).backward()
            after_backward(model)
            optimizer.step()
            after_step(optimizer)

        return step

    return own_step


def hand_step(average, loss=mse, *, before_step=lambda model: None):
    """Return a step that averages by hand: ``average(model)`` after backward."""

    def own_step(model, make_optimizer):
        optimizer = make_optimizer(model.parameters())

        def step(batch):
            optimizer.zero_grad()
            loss(model, batch).backward()
            average(model)
            before_step(model)
            optimizer.step()

        return step

    return own_step


def gradients(model):
    """Return the gradients of a model."""
    return [p.grad for p in model.parameters() if p.grad is not None]

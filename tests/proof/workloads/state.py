"""Models, losses and steps with state outside parameters and buffers, and wrong steps with it."""

from __future__ import annotations

import copy
import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from tests.proof.case import right, wrong
from tests.proof.workloads.tasks import (
    WIDTH,
    add_up,
    anew,
    auto_clip,
    average,
    ddp_step,
    follow,
    hand_step,
    mlp,
    mse,
    normal,
    nothing,
    penalty,
    series,
    workload,
)


@right("manual", origin="byol-pytorch#89")
def momentum_target():
    """Frozen parameters that each forward moves towards trained ones."""
    return workload(model=_Bootstrap(), loss=lambda model, batch: model(batch[0], batch[0].flip(1)))


class _Bootstrap(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 4))
        self.guess = nn.Linear(4, 4)
        self.target = copy.deepcopy(self.online).requires_grad_(requires_grad=False)

    def forward(self, view, other):
        if self.training:
            follow(self.target, self.online)
        return nn.functional.mse_loss(self.guess(self.online(view)), self.target(other))


@right("manual", origin="moco#70")
def momentum_encoder_with_a_queue():
    """Keys of earlier batches in a buffer, by a slow encoder."""
    return workload(model=_Queue(), loss=lambda model, batch: model(batch[0]))


class _Queue(nn.Module):
    def __init__(self):
        super().__init__()
        self.fast = nn.Linear(WIDTH, 4)
        self.slow = copy.deepcopy(self.fast).requires_grad_(requires_grad=False)
        self.register_buffer("queue", torch.randn(12, 4))

    def forward(self, rows):
        if self.training:
            follow(self.slow, self.fast)
        asked = nn.functional.normalize(self.fast(rows), dim=1)
        keys = nn.functional.normalize(self.slow(rows.flip(0)), dim=1)
        logits = torch.cat([(asked * keys).sum(1, keepdim=True), asked @ self.queue.clone().t()], dim=1)
        if self.training:
            self.queue = torch.cat([keys.detach(), self.queue])[:12]
        return nn.functional.cross_entropy(logits / 0.5, torch.zeros(len(rows), dtype=torch.long))


@right("ddp", origin="pytorch#7890")
def hidden_state_in_an_attribute():
    """An RNN that goes on from its last batch."""
    return workload(model=Stateful(), data=series())


class Stateful(nn.Module):
    """An RNN that keeps its state in an attribute."""

    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 1)
        self.hidden = None

    def forward(self, inputs):
        kept = self.hidden
        if kept is not None and (kept.shape[1] != len(inputs) or kept.dtype != inputs.dtype):
            kept = None
        found, last = self.rnn(inputs, kept)
        if self.training:
            self.hidden = last.detach()
        return self.out(found[:, -1])


@right("manual", origin="fastbook#469")
def penalty_that_grows_by_a_counter():
    """A number in an attribute counts the calls in training."""
    return workload(model=_Annealed())


class _Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.calls = mlp(), 0

    def forward(self, inputs):
        self.calls += self.training
        return self.net(inputs) * min(1.0, self.calls / 15)


@right("ddp", origin="a public report")
def annealing_in_a_closure():
    """A weight of the loss grows with the calls of the loss."""
    calls = 0

    def loss(model, batch):
        nonlocal calls
        calls += 1
        found = model(batch[0])
        return nn.functional.mse_loss(found, batch[1]) + min(1.0, calls / 30) * found.square().mean()

    return workload(loss=loss)


@right("manual", origin="own")
def running_mean_of_the_loss():
    """A loss relative to the mean of its last values."""
    kept = {"mean": 1.0}

    def loss(model, batch):
        found = mse(model, batch)
        kept["mean"] = 0.9 * kept["mean"] + 0.1 * float(found)
        return found / kept["mean"]

    return workload(loss=loss)


@right("manual", origin="a public report")
def clip_by_the_norms_so_far():
    """AutoClip: a limit from the norms of all earlier steps."""
    return workload(before_step=auto_clip())


@right("ddp", origin="own")
def slow_copy_beside_the_training():
    """An exponential mean of the weights, which no step uses."""
    means = {}

    def before_step(parameters):
        for index, parameter in enumerate(parameters):
            mean = means.setdefault(index, parameter.detach().clone())
            mean.lerp_(parameter.detach(), 0.1)

    return workload(before_step=before_step)


@right("manual", origin="own")
def noise_in_the_data():
    """Samples that draw noise from torch, NumPy and ``random``."""

    class Noisy(torch.utils.data.Dataset):
        def __init__(self):
            self.rows = normal(256, WIDTH, seed=7)

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            row, noise = self.rows[index], np.random.rand() + random.random()  # noqa: NPY002 -- as users draw
            return row + 0.1 * (noise + torch.randn(WIDTH)), row.square().sum()[None]

    return workload(data=Noisy())


@right("ddp", origin="own")
def variational_noise():
    """Noise that the model draws itself, as an autoencoder does."""

    class Noise(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean, self.spread, self.out = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 3), nn.Linear(3, WIDTH)

        def forward(self, rows):
            mean, spread = self.mean(rows), self.spread(rows)
            found = self.out(mean + torch.randn_like(mean) * torch.exp(spread / 2))
            return (found - rows).square().mean() + (mean.square() + spread.exp() - spread - 1).mean()

    return workload(model=Noise(), loss=lambda model, batch: model(batch[0]))


@right("own_torch", origin="pytorch#7890")
def hidden_state_in_an_own_step():
    """An RNN's state in an attribute, in an own step."""
    return workload(model=Stateful(), data=series(), own_step=ddp_step())


def _changed_by(make):
    """Return a workload that changes averaged gradients by what ``make`` returns, in its own step too."""

    def fresh(model):
        change = make()
        return ddp_step(after_backward=lambda model: change(list(model.parameters())))

    return workload(own_step=anew(fresh), before_step=make())


@right("own_torch", origin="a public report")
def clip_by_the_norms_so_far_in_an_own_step():
    """AutoClip in a step of the user's own, after DDP's average."""
    return _changed_by(auto_clip)


@right("own_torch", origin="own")
def gradients_over_their_running_size():
    """Gradients divided by their running size, after the average."""

    def scale():
        sizes = {}

        def change(parameters):
            for index, parameter in enumerate(parameters):
                size = sizes.setdefault(index, parameter.grad.norm())
                sizes[index] = torch.lerp(size, parameter.grad.norm(), 0.1)
                parameter.grad.div_(sizes[index] + 1e-8)

        return change

    return _changed_by(scale)


# ---- state, and a wrong step ----


def _stateful(average, **late):
    """Return an RNN with state, and its step by hand."""
    return workload(model=Stateful(), data=series(), own_step=hand_step(average, **late))


@wrong(origin="a public report", ends="failed")
def hidden_state_never_synchronised():
    """An RNN with state, whose ranks train alone."""
    return _stateful(nothing)


@wrong(origin="a public report", ends="failed")
def hidden_state_and_a_sum():
    """An RNN with state, by sums in place of means."""
    return _stateful(add_up)


@wrong(origin="a public report", or_names="remembers")
def hidden_state_and_a_late_sum():
    """An RNN with state, by sums from the 26th step on."""
    return _stateful(average, late=add_up)


@wrong("ddp", origin="a public report", ends="refused", names="torch.distributed.is_initialized")
def annealing_that_counts_the_rank():
    """A weight of the loss that differs between ranks."""
    made = annealing_in_a_closure()

    def loss(model, batch):
        rank = dist.get_rank() if dist.is_initialized() else 0
        return made.loss(model, batch) + 0.1 * rank * penalty(model)

    return workload(loss=loss)

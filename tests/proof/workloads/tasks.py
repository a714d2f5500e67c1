"""Build the small data, models and steps that the cases share."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from compare.workload import Workload

WIDTH = 6
SAMPLES = 256
LATE = 25
"""First step of what begins late; the proof before the training takes twenty."""


def normal(*shape, seed):
    """Return normal numbers, the same ones in every process."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rows(count=SAMPLES, width=WIDTH, targets=None):
    """Return regression samples whose target, unless given, is no linear function."""
    inputs = normal(count, width, seed=3)
    return TensorDataset(inputs, (inputs**2).sum(1, keepdim=True) / width if targets is None else targets)


def series(count=SAMPLES, length=5, width=4):
    """Return sequences with a target each."""
    inputs = normal(count, length, width, seed=4)
    return TensorDataset(inputs, inputs[:, :, 0].sum(1, keepdim=True))


def images(count=SAMPLES):
    """Return images of 6 x 6 pixels with a class each."""
    pixels = normal(count, 3, 6, 6, seed=5)
    return TensorDataset(pixels, (pixels[:, 0].sum((1, 2)) > 0).long())


def words(count=SAMPLES, rows=20):
    """Return lists of four words with a target each."""
    chosen = torch.randint(1, rows, (count, 4), generator=torch.Generator().manual_seed(6))
    return TensorDataset(chosen, chosen.float().mean(1, keepdim=True) / rows)


def mlp(*layers, width=WIDTH, hidden=8):
    """Return a small model without dead units; ``layers`` come before its last one."""
    return nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), *layers, nn.Linear(hidden, 1))


class Reader(nn.Module):
    """A GRU that reads sequences, and returns one number for each."""

    def __init__(self, *, batch_first=True):
        super().__init__()
        self.rnn, self.out = nn.GRU(4, 6, batch_first=batch_first), nn.Linear(6, 1)

    def forward(self, inputs):
        return self.out(self.rnn(inputs)[1][-1])


def mse(model, batch):
    """Return the mean squared error."""
    inputs, targets = batch
    found = model(inputs)
    return nn.functional.mse_loss(found, targets.to(found.dtype))


def cross_entropy(model, batch):
    """Return the mean cross entropy of classes."""
    inputs, classes = batch
    return nn.functional.cross_entropy(model(inputs), classes)


def in_bfloat16(model, batch):
    """Return the mean squared error of a forward pass in bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        found = model(batch[0])
    return nn.functional.mse_loss(found.to(batch[1].dtype), batch[1])


def penalty(model):
    """Return the sum of all squared parameters."""
    return sum(p.square().sum() for p in model.parameters())


def sgd(parameters):
    """Make plain SGD of what is trained."""
    return torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.05)


def workload(**changes):
    """Return a workload, with other parts where they are given."""
    parts = {"loss": mse, "optimizer": sgd} | changes
    parts["model"] = parts.get("model") or mlp()
    parts["data"] = parts.get("data") or rows()
    return Workload(**parts)


# ---- steps of the user's own ----


def nothing(*_):
    """Change nothing."""


def step_of(backward, *, wrap=lambda model: model, after_step=nothing):
    """Return a step between zero_grad and ``after_step(optimizer)``.

    ``backward(trained, batch, number)`` gets what ``wrap`` makes of the model, and the number of the step
    from 0.
    """

    def own_step(model, make_optimizer):
        trained, numbers = wrap(model), itertools.count()
        optimizer = make_optimizer(trained.parameters())

        def step(batch):
            optimizer.zero_grad()
            backward(trained, batch, next(numbers))
            optimizer.step()
            after_step(optimizer)

        return step

    return own_step


def ddp_step(loss=mse, *, after_backward=nothing, after_step=nothing, hook=nothing, **ddp):
    """Return the step of the tutorials: DDP, backward, step; ``hook`` gets what DDP has wrapped."""

    def wrap(model):
        wrapped = DistributedDataParallel(model, **ddp)
        hook(wrapped)
        return wrapped

    def backward(wrapped, batch, _):
        loss(wrapped, batch).backward()
        after_backward(wrapped.module)

    return step_of(backward, wrap=wrap, after_step=after_step)


def hand_step(average, loss=mse, *, late=None, before_step=nothing, after_step=nothing):
    """Return a step that averages by hand: ``average(model)`` after backward.

    From step ``LATE`` on, ``late(model)`` takes its place.
    """

    def backward(model, batch, number):
        loss(model, batch).backward()
        (late if late and number >= LATE else average)(model)
        before_step(model)

    return step_of(backward, after_step=after_step)


def halves_step(quiet=None, weight=0.5):
    """Return DDP's step of two passes; the one with the number ``quiet`` does not communicate."""

    def backward(wrapped, batch, _):
        for number, half in enumerate(zip(*(part.chunk(2) for part in batch), strict=True)):
            with wrapped.no_sync() if number == quiet else nullcontext():
                (mse(wrapped, half) * weight).backward()

    return step_of(backward, wrap=DistributedDataParallel)


def following(schedule, make_step, *, times=1):
    """Return the step of ``make_step(after_step=...)``, which moves a schedule on so many ``times``."""

    def own_step(model, make_optimizer):
        schedulers = []

        def make(parameters):
            optimizer = make_optimizer(parameters)
            schedulers.append(torch.optim.lr_scheduler.LambdaLR(optimizer, schedule))
            return optimizer

        def move_on(_):
            for scheduler in schedulers * times:
                scheduler.step()

        return make_step(after_step=move_on)(model, make)

    return own_step


def anew(make):
    """Return a step of the user's own whose closures ``make`` makes anew for each replica."""
    return lambda model, make_optimizer: make(model)(model, make_optimizer)


def gradients(model):
    """Return the gradients of a model."""
    return [p.grad for p in model.parameters() if p.grad is not None]


def mean_(tensors):
    """Replace each tensor by its mean over all ranks."""
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor.div_(dist.get_world_size())


def average(model):
    """Replace each gradient by the mean of all ranks."""
    mean_(gradients(model))


def add_up(model):
    """Replace each gradient by the sum of all ranks."""
    for gradient in gradients(model):
        dist.all_reduce(gradient)


# ---- changes of averaged gradients ----


def clip(limit):
    """Return a clip of gradients by their norm."""
    return lambda parameters: nn.utils.clip_grad_norm_(parameters, limit)


def auto_clip():
    """Return AutoClip, whose limit comes from the norms of all earlier steps."""
    norms = []

    def before_step(parameters):
        held = [p for p in parameters if p.grad is not None]
        norms.append(float(torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in held]))))
        nn.utils.clip_grad_norm_(held, sorted(norms)[len(norms) // 4])

    return before_step


@torch.no_grad()
def follow(slow, fast):
    """Move the parameters of one model towards those of another."""
    for behind, ahead in zip(slow.parameters(), fast.parameters(), strict=True):
        behind.lerp_(ahead, 0.1)

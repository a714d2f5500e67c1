"""Steps that never synchronise, where no gradient can tell."""

from __future__ import annotations

import torch
from torch import nn

from tests.proof.case import wrong
from tests.proof.workloads.right_models import Adapted
from tests.proof.workloads.tasks import (
    WIDTH,
    add_up,
    cross_entropy,
    gradients,
    hand_step,
    mean_,
    mse,
    normal,
    nothing,
    penalty,
    rows,
    words,
    workload,
)

EMPTY = ("nothing", "failed")
"""No gradient tells such a step from a right one."""


def _alone(loss=mse, **parts):
    """Return a workload whose step never communicates."""
    return workload(loss=loss, own_step=hand_step(nothing, loss), **parts)


# ---- every gradient is zero ----


@wrong(origin="pytorch/examples ddp-tutorial-series", ends=EMPTY)
def softmax_over_one_class():
    """The loss of one class is zero."""
    return _alone(cross_entropy, data=rows(targets=torch.rand(256, 1)))


@wrong(origin="NeMo Automodel#3701", ends=EMPTY)
def dead_before_the_loss():
    """A last ReLU that is never above zero, and an optimizer that decays weights."""

    def optimizer(parameters):
        return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)

    return _alone(lambda model, batch: torch.relu(-model(batch[0]).abs() - 1).mean(), optimizer=optimizer)


# ---- all shards have equal gradients ----


EQUAL = torch.ones(256, 1)


@wrong(origin="a public report", ends=EMPTY)
def equal_samples():
    """Every sample is the same."""
    return _alone(data=torch.utils.data.TensorDataset(torch.ones(256, WIDTH), EQUAL))


@wrong(origin="a public report", ends=EMPTY)
def inputs_of_zero():
    """Targets are equal, and inputs are zero."""
    return _alone(data=torch.utils.data.TensorDataset(torch.zeros(256, WIDTH), EQUAL))


@wrong(origin="a public report", ends=EMPTY)
def loss_without_the_data():
    """The loss is the size of the weights."""
    return _alone(lambda model, batch: penalty(model) + 0 * model(batch[0]).sum())


@wrong(origin="own", ends=EMPTY)
def dummy_batches():
    """A benchmark's one batch, which the loss repeats for ever."""
    fixed = normal(4, WIDTH, seed=1)
    return _alone(lambda model, batch: model(fixed.to(batch[0].dtype)).square().mean())


def _dead():
    net = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 1))
    nn.init.constant_(net[0].bias, -100.0)
    return net


@wrong(origin="a public report", ends=EMPTY)
def dead_relu_with_equal_targets():
    """A dead ReLU: only the last bias moves, alike on all ranks."""
    return _alone(model=_dead(), data=rows(targets=EQUAL))


@wrong(origin="own", ends=EMPTY, ranks=1)
def one_rank_that_sums():
    """A sum for the mean, on one rank."""
    return workload(own_step=hand_step(add_up))


# ---- some parameters tell, and others do not ----


@wrong(origin="a public report", or_names=("0.weight", "0.bias", "2.weight"))
def dead_relu_with_the_last_bias_averaged():
    """Only the last bias is averaged, and no other moves."""
    return workload(model=_dead(), own_step=hand_step(lambda model: mean_(gradients(model)[-1:])))


class _Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.rare, self.common = nn.Embedding(20, 4), nn.Embedding(20, 4)
        self.out = nn.Linear(4, 1)

    def forward(self, chosen):
        rare = self.rare(chosen.clamp(max=0)) * (chosen > 1000)[..., None]
        return self.out(torch.tanh(self.common(chosen) + rare).mean(1))


@wrong(origin="own", or_names="rare.weight")
def words_that_never_appear():
    """An embedding of words that no sample has, never averaged."""

    def most(model):
        mean_([*gradients(model.common), *gradients(model.out)])

    return workload(model=_Tokens(), data=words(), own_step=hand_step(most))


@wrong(origin="own", ends="failed")
def adapters_that_start_at_zero():
    """Half of an adapter has no gradient in the first step."""

    def own_step(model, make_optimizer):
        return hand_step(lambda model: mean_([model.up.grad]))(
            model, lambda parameters: make_optimizer(p for p in parameters if p.requires_grad)
        )

    return workload(model=Adapted(), own_step=own_step)

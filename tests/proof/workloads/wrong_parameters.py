"""Optimizers over wrong parameters, and models that the proof changes."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import nn

from tests.proof.case import wrong
from tests.proof.workloads.right_models import Spectral
from tests.proof.workloads.tasks import (
    add_up,
    average,
    ddp_step,
    gradients,
    hand_step,
    mean_,
    mlp,
    mse,
    rows,
    step_of,
    workload,
)

REFUSED = ("failed", "refused")
NAMED = (*REFUSED, "passed")
"""A parameter may be frozen on purpose, so it is named."""


# ---- the run's optimizer has other parameters ----


@wrong(
    "ddp",
    "manual",
    "own_torch",
    origin="pytorch#14467",
    ends=REFUSED,
    names="2 of the optimizer's 4 parameters are not the model's",
)
def biases_of_another_copy():
    """Weights are those handed over, and biases those of a copy."""
    net = mlp()
    other = copy.deepcopy(net)

    def optimizer(parameters):
        weights = [p for p in parameters if p.dim() > 1]
        biases = [p for p in other.parameters() if p.dim() <= 1]
        return torch.optim.AdamW([{"params": weights}, {"params": biases, "weight_decay": 0.0}], lr=0.01)

    return workload(model=net, optimizer=optimizer, own_step=ddp_step())


@wrong("ddp", origin="skorch#317", ends=REFUSED)
def all_of_another_copy():
    """The optimizer holds the parameters of a copy that was closed over."""
    other = mlp()
    return workload(optimizer=lambda _: torch.optim.AdamW(other.parameters(), lr=0.01))


@wrong("ddp", "own_torch", origin="a public report", ends=NAMED, names="bias")
def second_pass_over_an_iterator():
    """Two comprehensions over parameters; a second would find none."""

    def optimizer(parameters):
        once = iter(parameters)
        weights, biases = [p for p in once if p.dim() > 1], [p for p in once if p.dim() <= 1]
        groups = [{"params": part} for part in (weights, biases) if part]
        return torch.optim.AdamW(groups, lr=0.01)

    return workload(optimizer=optimizer, own_step=ddp_step())


@wrong("ddp", "manual", origin="a public report", ends=NAMED, names="2.")
def half_of_the_parameters():
    """The optimizer holds the first layer alone."""
    return workload(optimizer=lambda parameters: torch.optim.Adam(list(parameters)[:2], lr=0.01))


@wrong(origin="a public report", ends=REFUSED)
def own_step_with_half_of_the_parameters():
    """An own step hands over the first layer alone."""

    def own_step(model, make_optimizer):
        return ddp_step()(model, lambda _: make_optimizer(model[0].parameters()))

    return workload(own_step=own_step)


# ---- complex numbers ----


def _spectral(average):
    return workload(model=Spectral(), data=rows(width=8), own_step=hand_step(average))


@wrong(origin="pytorch#80080", ends="failed")
def imaginary_parts_lost():
    """Imaginary parts of gradients become zero."""

    def lost(model):
        for gradient in gradients(model):
            part = gradient.real.contiguous()
            mean_([part])
            gradient.copy_(part)

    return _spectral(lost)


@wrong(origin="horovod#2164", ends="failed")
def complex_weights_left_out():
    """Complex gradients are not averaged, because a library refuses them."""
    return _spectral(lambda model: mean_(g for g in gradients(model) if not g.is_complex()))


# ---- a step that does otherwise in the run than in the proof ----


@wrong(origin="a public report", ends="failed")
def averages_of_float64_alone():
    """Gradients of float32 are not averaged."""
    return workload(
        own_step=hand_step(lambda model: mean_(g for g in gradients(model) if g.dtype == torch.float64))
    )


@wrong(origin="a public report", ends="failed")
def sums_of_float32():
    """Gradients of float32 are not divided."""

    def divided_in_double(model):
        (average if model[0].weight.dtype == torch.float64 else add_up)(model)

    return workload(own_step=hand_step(divided_in_double))


@wrong(origin="a public report", ends="failed", batch_size_per_rank=16)
def small_batches_alone():
    """Only batches of up to four samples are averaged."""

    def backward(model, batch, _):
        mse(model, batch).backward()
        if len(batch[0]) <= 4:
            average(model)

    return workload(own_step=step_of(backward))


@wrong(origin="own", ends="failed")
def decay_by_hand_on_one_rank():
    """The last rank alone decays its weights."""

    def decayed(model):
        average(model)
        if dist.get_rank() == 1:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.99)

    return workload(own_step=hand_step(decayed))


@wrong(origin="own", ends="failed")
def batch_norm_of_the_last_rank():
    """Weights of BatchNorm stay each rank's own."""

    def without_norms(model):
        average(model[0])
        average(model[3])

    return workload(model=mlp(nn.BatchNorm1d(8)), own_step=hand_step(without_norms))

"""Steps that never synchronise, where no gradient can tell."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from tests.proof.case import wrong
from tests.proof.workloads.tasks import WIDTH, gradients, hand_step, mse, rows, sgd, words, workload
from tests.proof.workloads.wrong_steps import alone

EMPTY = ("nothing", "failed")
"""No gradient tells such a step from a right one."""


def _decaying(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


# ---- every gradient is zero ----


def _softmax_of_one(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@wrong(origin="pytorch/examples ddp-tutorial-series", ends=EMPTY)
def softmax_over_one_class():
    """The loss of one class is zero."""
    return workload(loss=_softmax_of_one, data=_labelled(), own_step=alone(_softmax_of_one))


@wrong(origin="a public report", ends=EMPTY)
def softmax_over_one_class_with_decay():
    """The loss of one class is zero, and the optimizer decays weights."""
    made = _labelled()
    return workload(loss=_softmax_of_one, data=made, optimizer=_decaying, own_step=alone(_softmax_of_one))


def _labelled():
    return torch.utils.data.TensorDataset(rows()[:][0], torch.rand(256, 1))


@wrong(origin="NeMo Automodel#3701", ends=EMPTY)
def dead_before_the_loss():
    """A last ReLU that is never above zero."""

    def loss(model, batch):
        return torch.relu(-model(batch[0]).abs() - 1).mean()

    return workload(loss=loss, optimizer=_decaying, own_step=alone(loss))


@wrong(origin="own", ends=EMPTY)
def targets_that_are_reached():
    """Zero targets of a model of zeros."""
    net = nn.Linear(WIDTH, 1)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    data = torch.utils.data.TensorDataset(rows()[:][0], torch.zeros(256, 1))
    return workload(model=net, data=data, optimizer=_decaying, own_step=alone())


# ---- all shards have equal gradients ----


@wrong(origin="a public report", ends=EMPTY)
def equal_samples():
    """Every sample is the same."""
    data = torch.utils.data.TensorDataset(torch.ones(256, WIDTH), torch.ones(256, 1))
    return workload(data=data, own_step=alone())


@wrong(origin="a public report", ends=EMPTY)
def loss_without_the_data():
    """The loss is the size of the weights."""

    def loss(model, batch):
        found = model(batch[0])
        return sum(p.square().sum() for p in _of(model).parameters()) + 0 * found.sum()

    return workload(loss=loss, own_step=alone(loss))


def _of(model):
    return getattr(model, "module", model)


@wrong(origin="own", ends=EMPTY)
def dummy_batches():
    """A benchmark's one batch, which the loss repeats for ever."""
    fixed = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1))

    def loss(model, batch):
        return model(fixed.to(batch[0].dtype)).square().mean()

    return workload(loss=loss, own_step=alone(loss))


@wrong(origin="a public report", ends=EMPTY)
def inputs_of_zero():
    """Inputs and targets are equal, and the inputs are zero."""
    data = torch.utils.data.TensorDataset(torch.zeros(256, WIDTH), torch.ones(256, 1))
    return workload(data=data, own_step=alone())


@wrong(origin="a public report", ends=EMPTY)
def dead_relu_with_equal_targets():
    """A dead ReLU: only the last bias moves, alike on all ranks."""
    return workload(model=_dead(), data=_equal_targets(), own_step=alone())


def _dead():
    net = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 1))
    nn.init.constant_(net[0].bias, -100.0)
    return net


def _equal_targets():
    return torch.utils.data.TensorDataset(rows()[:][0], torch.ones(256, 1))


@wrong(origin="a public report", ends=EMPTY, ranks=1)
def one_rank_alone():
    """One rank, so that nothing is to be averaged."""
    return workload(own_step=alone())


@wrong(origin="own", ends=EMPTY, ranks=1)
def one_rank_that_sums():
    """A sum for the mean, on one rank."""

    def add_up(model):
        for gradient in gradients(model):
            dist.all_reduce(gradient)

    return workload(own_step=hand_step(add_up))


# ---- some parameters tell, and others do not ----


def _last_alone(model):
    """Average the last gradient, and no other."""
    last = gradients(model)[-1]
    dist.all_reduce(last)
    last.div_(dist.get_world_size())


@wrong(origin="a public report", or_names=("0.weight", "0.bias", "2.weight"))
def dead_relu_with_the_last_bias_averaged():
    """Only the last bias is averaged, and no other moves."""
    return workload(model=_dead(), own_step=hand_step(_last_alone))


@wrong(origin="a public report", or_names=("0.weight", "2.weight"))
def zero_inputs_with_biases_averaged():
    """Inputs of zero to a linear model, whose biases alone are averaged."""
    net = nn.Sequential(nn.Linear(WIDTH, 4, bias=False), nn.Identity(), nn.Linear(4, 1))
    targets = torch.randn(256, 1, generator=torch.Generator().manual_seed(2))
    data = torch.utils.data.TensorDataset(torch.zeros(256, WIDTH), targets)
    return workload(model=net, data=data, own_step=hand_step(_last_alone))


class _Gated(nn.Module):
    """A branch behind a gate that stays shut."""

    def __init__(self):
        super().__init__()
        self.branch = nn.Linear(WIDTH, 1)
        self.register_buffer("gate", torch.zeros(1))
        self.main = nn.Linear(WIDTH, 1)

    def forward(self, inputs):
        return self.main(inputs) + self.gate * self.branch(inputs)


@wrong(origin="a public report", or_names=("branch.weight", "branch.bias"))
def branch_behind_a_shut_gate():
    """A branch without gradient, which the step never averages."""

    def main_alone(model):
        for parameter in model.main.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(dist.get_world_size())

    return workload(model=_Gated(), own_step=hand_step(main_alone))


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
        for name, parameter in model.named_parameters():
            if not name.startswith("rare"):
                dist.all_reduce(parameter.grad)
                parameter.grad.div_(dist.get_world_size())

    return workload(model=_Tokens(), data=words(), optimizer=sgd, own_step=hand_step(most))


@wrong(origin="own", ends="failed")
def adapters_that_start_at_zero():
    """Half of an adapter has no gradient in the first step."""

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(WIDTH, 1).requires_grad_(requires_grad=False)
            self.down, self.up = nn.Parameter(torch.randn(2, WIDTH)), nn.Parameter(torch.zeros(1, 2))

        def forward(self, inputs):
            return self.base(inputs) + inputs @ self.down.T @ self.up.T

    def most(model):
        dist.all_reduce(model.up.grad)
        model.up.grad.div_(dist.get_world_size())

    return workload(model=Adapted(), optimizer=_trained, own_step=_trained_step(most))


def _trained(parameters):
    return sgd([p for p in parameters if p.requires_grad])


def _trained_step(average):
    def own_step(model, make_optimizer):
        return hand_step(average, mse)(
            model, lambda parameters: make_optimizer(p for p in parameters if p.requires_grad)
        )

    return own_step

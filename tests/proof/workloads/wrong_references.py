"""Wrong steps with a step of one process, or with state."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.proof.case import wrong
from tests.proof.workloads.right_state import Stateful, annealing_in_a_closure
from tests.proof.workloads.right_steps import (
    adversaries,
    adversaries_in_one_process,
    in_turn,
    sharpness_aware,
    sharpness_aware_in_one_process,
    taught,
    taught_in_one_process,
    teacher_follows,
    with_reference,
)
from tests.proof.workloads.tasks import ddp_step, hand_step, mse, series, workload
from tests.proof.workloads.wrong_late import add_up, late
from tests.proof.workloads.wrong_steps import average


def _of_each_rank(model, make_optimizer):
    """Train both models on each rank alone."""
    return in_turn(model["maker"], model["judge"], make_optimizer, lambda loss, batch: loss(batch).backward())


@wrong(origin="a public report", ends="failed")
def adversaries_never_synchronised():
    """A GAN whose ranks train alone."""
    return with_reference(adversaries(_of_each_rank), adversaries_in_one_process)


@wrong(origin="a public report", ends="failed")
def adversaries_with_one_synchronised():
    """A GAN whose maker is not in DDP."""

    def own_step(model, make_optimizer):
        judge = DistributedDataParallel(model["judge"])
        return in_turn(model["maker"], judge, make_optimizer, lambda loss, batch: loss(batch).backward())

    return with_reference(adversaries(own_step), adversaries_in_one_process)


@wrong(origin="a public report", ends=("failed", "incomparable"))
def adversaries_alone_and_never_synchronised():
    """A GAN whose ranks train alone, without a step of one process."""
    return adversaries(_of_each_rank)


@wrong(origin="a public report", ends="failed")
def sharpness_of_each_rank():
    """SAM, whose first gradient stays each rank's own."""

    def own_step(model, make_optimizer):
        wrapped = DistributedDataParallel(model)
        passes = 0

        def compute(batch):
            nonlocal passes
            passes += 1
            mse(model if passes % 2 else wrapped, batch).backward()

        return sharpness_aware(model, make_optimizer(wrapped.parameters()), compute)

    return with_reference(workload(own_step=own_step), sharpness_aware_in_one_process)


@wrong(origin="a public report", ends="failed")
def sharpness_by_a_sum():
    """SAM by sums, in place of means."""

    def own_step(model, make_optimizer):
        def compute(batch):
            mse(model, batch).backward()
            add_up(model)

        return sharpness_aware(model, make_optimizer(model.parameters()), compute)

    return with_reference(workload(own_step=own_step), sharpness_aware_in_one_process)


@wrong(origin="a public report", ends="failed")
def teacher_follows_on_one_rank():
    """A teacher that follows the pupil on rank 0 alone."""

    def follows(model):
        if dist.get_rank() == 0:
            teacher_follows(model)

    return with_reference(taught(follows), taught_in_one_process)


@wrong(origin="a public report", ends="failed")
def hidden_state_never_synchronised():
    """An RNN with state, whose ranks train alone."""
    return workload(model=Stateful(), data=series(), own_step=hand_step(lambda model: None))


@wrong(origin="a public report", ends="failed")
def hidden_state_and_a_sum():
    """An RNN with state, by sums in place of means."""
    return workload(model=Stateful(), data=series(), own_step=hand_step(add_up))


@wrong(origin="a public report", or_names="remembers")
def hidden_state_and_a_late_sum():
    """An RNN with state, by sums from the 26th step on."""
    return workload(model=Stateful(), data=series(), own_step=late(average, add_up))


@wrong("ddp", origin="a public report", ends="refused", names="torch.distributed.is_initialized")
def annealing_that_counts_the_rank():
    """A weight of the loss that differs between ranks."""
    made = annealing_in_a_closure()

    def loss(model, batch):
        penalty = sum(p.square().sum() for p in model.parameters())
        return made.loss(model, batch) + 0.1 * _rank() * penalty

    return workload(loss=loss)


def _rank():
    return dist.get_rank() if dist.is_initialized() else 0


@wrong(origin="own", ends="failed")
def penalty_of_the_parameters_twice():
    """The step adds a penalty that the loss has already."""

    def penalised(model, batch):
        return mse(model, batch) + 0.01 * sum(p.square().sum() for p in model.parameters())

    def again(model, batch):
        return penalised(model, batch) + 0.01 * sum(p.square().sum() for p in model.parameters())

    return workload(loss=penalised, own_step=ddp_step(again))


@wrong(origin="own", ends="failed")
def dropout_left_out():
    """The step trains in the mode of the test."""
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 1))

    def own_step(model, make_optimizer):
        model.eval()
        return ddp_step()(model, make_optimizer)

    return workload(model=net, own_step=own_step)

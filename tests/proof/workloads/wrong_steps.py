"""Steps that are wrong from the start."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset

from tests.proof.case import wrong
from tests.proof.workloads.tasks import (
    SAMPLES,
    add_up,
    anew,
    average,
    ddp_step,
    gradients,
    halves_step,
    hand_step,
    mean_,
    mlp,
    mse,
    nothing,
    penalty,
    rows,
    step_of,
    workload,
)


def alone(loss=mse):
    """Return a step that never communicates."""
    return hand_step(nothing, loss)


# ---- gradients that do not reach all ranks ----


@wrong(origin="a public report", ends="failed")
def never_synchronised():
    """A step that never communicates."""
    return workload(own_step=alone())


@wrong(origin="a public report", ends="failed")
def unwrapped_model():
    """The loss calls the model, not DDP's wrapper."""
    return workload(own_step=ddp_step(lambda wrapped, batch: mse(wrapped.module, batch)))


@wrong(origin="own", ends="failed")
def first_ranks_gradient():
    """Rank 0 sends its gradient to all, in place of the mean."""

    def broadcast(model):
        for gradient in gradients(model):
            dist.broadcast(gradient, 0)

    return workload(own_step=hand_step(broadcast))


@wrong(origin="own", ends="failed", names="2.bias")
def one_parameter_left_out():
    """The last bias is not averaged."""
    return workload(own_step=hand_step(lambda model: mean_(gradients(model)[:-1])))


@wrong(origin="own", ends="failed")
def mean_of_the_step_before():
    """Each step applies the average of the step before."""

    def fresh(_):
        waiting = []

        def stale(model):
            average(model)
            waiting.append([gradient.clone() for gradient in gradients(model)])
            if len(waiting) > 1:
                torch._foreach_copy_(gradients(model), waiting.pop(0))

        return hand_step(stale)

    return workload(own_step=anew(fresh))


@wrong(origin="a public report", ends="failed")
def no_sync_in_the_last_pass():
    """The first of two passes communicates, and the last one does not."""
    return workload(own_step=halves_step(quiet=1))


@wrong(origin="a public report", ends="failed")
def every_second_step_in_no_sync():
    """Only every second step communicates."""

    def backward(wrapped, batch, number):
        wrapped.require_backward_grad_sync = number % 2 == 0
        mse(wrapped, batch).backward()

    return workload(own_step=step_of(backward, wrap=DistributedDataParallel))


@wrong(origin="own", ends="failed")
def weights_averaged_now_and_then():
    """Ranks train alone, and average their weights every fourth step."""

    def backward(model, batch, number):
        mse(model, batch).backward()
        mean_(p.data for p in model.parameters() if number % 4 == 3)

    return workload(own_step=step_of(backward))


# ---- a factor ----


@wrong(origin="a public report", ends="failed", names="2 times the right one: a sum in place of the mean")
def sum_for_the_mean():
    """An all-reduce without a division."""
    return workload(own_step=hand_step(add_up))


@wrong(origin="stockfish nnue-pytorch#390", ends="failed")
def rate_times_the_ranks():
    """The learning rate grows with the ranks."""

    def own_step(model, make_optimizer):
        def larger(parameters):
            optimizer = make_optimizer(parameters)
            for group in optimizer.param_groups:
                group["lr"] *= dist.get_world_size()
            return optimizer

        return ddp_step()(model, larger)

    return workload(own_step=own_step)


@wrong(origin="a public report", ends="failed")
def divided_twice():
    """DDP's mean is divided by the ranks once more."""

    def again(model):
        for gradient in gradients(model):
            gradient.div_(dist.get_world_size())

    return workload(own_step=ddp_step(after_backward=again))


@wrong(origin="a public report", ends="failed")
def sum_over_samples():
    """The step adds up losses; one process takes their mean."""
    return workload(own_step=ddp_step(lambda model, batch: mse(model, batch) * len(batch[0])))


@wrong(origin="a public report", ends="failed")
def loss_not_divided_by_the_passes():
    """Two passes add up, and no loss is halved."""
    return workload(own_step=halves_step(weight=1))


# ---- the optimizer's step ----


@wrong(origin="own", ends="failed", names="so gradients are not reset")
def gradients_never_reset():
    """Gradients add up from step to step."""

    def own_step(model, make_optimizer):
        def make(parameters):
            optimizer = make_optimizer(parameters)
            optimizer.zero_grad = nothing
            return optimizer

        return ddp_step()(model, make)

    return workload(own_step=own_step)


@wrong(origin="own", ends="failed", names="the step does not reach them")
def gradients_reset_before_the_step():
    """Gradients are reset after backward, so nothing trains."""
    return workload(own_step=ddp_step(after_backward=lambda model: model.zero_grad(set_to_none=False)))


@wrong(origin="own", ends="failed")
def half_of_the_batch():
    """The step leaves out the second half of its batch."""
    return workload(
        own_step=ddp_step(lambda model, batch: mse(model, [part[: len(part) // 2] for part in batch]))
    )


@wrong(origin="a public report", ends="failed")
def rank_scales_by_a_hook():
    """A hook of the model doubles gradients on the last rank."""

    def fresh(model):
        if dist.get_rank() == 1:
            model[0].weight.register_hook(lambda gradient: 2 * gradient)
        return ddp_step()

    return workload(own_step=anew(fresh))


# ---- the loss ----


@wrong(origin="own", ends="failed")
def penalty_of_the_parameters_twice():
    """The step adds a penalty that the loss has already."""

    def penalised(model, batch):
        return mse(model, batch) + 0.01 * penalty(model)

    def again(model, batch):
        return penalised(model, batch) + 0.01 * penalty(model)

    return workload(loss=penalised, own_step=ddp_step(again))


@wrong(origin="own", ends="failed")
def dropout_left_out():
    """The step trains in the mode of the test."""

    def own_step(model, make_optimizer):
        return ddp_step()(model.eval(), make_optimizer)

    return workload(model=mlp(nn.Dropout(0.5), hidden=16), own_step=own_step)


# ---- loaders ----


def _batches(data, places, size):
    return DataLoader(Subset(data, list(places)), size)


def _reading(places):
    """Return a workload whose loader reads ``places(rank, ranks)``."""
    data = rows()

    def loader(rank, ranks, size):
        return _batches(data, places(rank, ranks), size)

    return workload(data=data, loader=loader, own_step=ddp_step())


@wrong(origin="a public report", ends="failed")
def second_rank_has_half_as_many():
    """Ranks with 128 and 64 of 256 samples."""
    return _reading(lambda rank, ranks: range(rank, SAMPLES // (1 + rank), ranks))


@wrong(origin="a public report", ends="failed")
def both_ranks_have_a_quarter():
    """Each rank reads a quarter, so half is never seen."""
    return _reading(lambda rank, ranks: range(rank, SAMPLES // 2, ranks))


@wrong("ddp", origin="a public report", ends="failed")
def same_samples_on_all_ranks():
    """A loader without shards."""
    return _reading(lambda rank, ranks: range(SAMPLES))


@wrong("ddp", origin="own", ends="failed")
def one_shard_from_the_second_epoch_on():
    """After the first epoch, every rank reads the first shard."""
    data = rows(64)

    class Stale(list):
        def __init__(self, rank, ranks, size):
            shards = [_batches(data, range(one, 64, ranks), size) for one in (rank, 0)]
            super().__init__(shards[0])
            self.later, self.epochs = list(shards[1]), 0

        def __iter__(self):
            self.epochs += 1
            return iter(list(super().__iter__()) if self.epochs == 1 else self.later)

    return workload(data=data, loader=Stale)

"""Steps that are wrong from the start."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.proof.case import wrong
from tests.proof.workloads.tasks import SAMPLES, ddp_step, gradients, hand_step, mse, rows, workload


def alone(loss=mse):
    """Return a step that never communicates."""
    return hand_step(lambda model: None, loss)


def average(model):
    """Replace each gradient by the mean of all ranks."""
    for gradient in gradients(model):
        dist.all_reduce(gradient)
        gradient.div_(dist.get_world_size())


# ---- gradients that do not reach all ranks ----


@wrong(origin="a public report", ends="failed")
def never_synchronised():
    """A step that never communicates."""
    return workload(own_step=alone())


@wrong(origin="a public report", ends="failed")
def unwrapped_model():
    """The loss calls the model, not DDP's wrapper."""

    def own_step(model, make_optimizer):
        optimizer = make_optimizer(DistributedDataParallel(model).parameters())

        def step(batch):
            optimizer.zero_grad()
            mse(model, batch).backward()
            optimizer.step()

        return step

    return workload(own_step=own_step)


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

    def most(model):
        for gradient in gradients(model)[:-1]:
            dist.all_reduce(gradient)
            gradient.div_(dist.get_world_size())

    return workload(own_step=hand_step(most))


@wrong(origin="own", ends="failed")
def mean_of_the_step_before():
    """Each step applies the average of the step before."""

    def own_step(model, make_optimizer):
        optimizer = make_optimizer(model.parameters())
        waiting = []

        def step(batch):
            optimizer.zero_grad()
            mse(model, batch).backward()
            average(model)
            waiting.append([gradient.clone() for gradient in gradients(model)])
            if len(waiting) > 1:
                torch._foreach_copy_(gradients(model), waiting.pop(0))
            optimizer.step()

        return step

    return workload(own_step=own_step)


@wrong(origin="a public report", ends="failed")
def no_sync_in_the_last_pass():
    """The first of two passes communicates, and the last one does not."""

    def own_step(model, make_optimizer):
        wrapped = DistributedDataParallel(model)
        optimizer = make_optimizer(wrapped.parameters())

        def step(batch):
            first, second = zip(*(part.chunk(2) for part in batch), strict=True)
            optimizer.zero_grad()
            (mse(wrapped, first) / 2).backward()
            with wrapped.no_sync():
                (mse(wrapped, second) / 2).backward()
            optimizer.step()

        return step

    return workload(own_step=own_step)


@wrong(origin="a public report", ends="failed")
def every_second_step_in_no_sync():
    """Only every second step communicates."""

    def own_step(model, make_optimizer):
        wrapped = DistributedDataParallel(model)
        optimizer = make_optimizer(wrapped.parameters())
        steps = 0

        def step(batch):
            nonlocal steps
            wrapped.require_backward_grad_sync = steps % 2 == 0
            steps += 1
            optimizer.zero_grad()
            mse(wrapped, batch).backward()
            optimizer.step()

        return step

    return workload(own_step=own_step)


@wrong(origin="own", ends="failed")
def weights_averaged_now_and_then():
    """Ranks train alone, and average their weights every fourth step."""

    def own_step(model, make_optimizer):
        steps = 0

        def now_and_then(model):
            nonlocal steps
            steps += 1
            for parameter in model.parameters() if steps % 4 == 0 else ():
                dist.all_reduce(parameter.data)
                parameter.data.div_(dist.get_world_size())

        return hand_step(lambda model: None, before_step=now_and_then)(model, make_optimizer)

    return workload(own_step=own_step)


@wrong(origin="own", ends="failed")
def one_rank_sends_zeros():
    """The last rank's share of the sum is zero, and counts."""

    def without_the_last(model):
        for gradient in gradients(model):
            if dist.get_rank() == dist.get_world_size() - 1:
                gradient.zero_()
        average(model)

    return workload(own_step=hand_step(without_the_last))


# ---- a factor ----


@wrong(origin="a public report", ends="failed", names="2 times the right one: a sum in place of the mean")
def sum_for_the_mean():
    """An all-reduce without a division."""

    def add_up(model):
        for gradient in gradients(model):
            dist.all_reduce(gradient)

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
def rate_times_the_root_of_the_ranks():
    """The learning rate grows with the root of the ranks."""

    def own_step(model, make_optimizer):
        def larger(parameters):
            optimizer = make_optimizer(parameters)
            for group in optimizer.param_groups:
                group["lr"] *= dist.get_world_size() ** 0.5
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

    def own_step(model, make_optimizer):
        wrapped = DistributedDataParallel(model)
        optimizer = make_optimizer(wrapped.parameters())

        def step(batch):
            optimizer.zero_grad()
            for part in zip(*(part.chunk(2) for part in batch), strict=True):
                mse(wrapped, part).backward()
            optimizer.step()

        return step

    return workload(own_step=own_step)


# ---- the optimizer's step ----


@wrong(origin="own", ends="failed", names="so gradients are not reset")
def gradients_never_reset():
    """Gradients add up from step to step."""

    def own_step(model, make_optimizer):
        wrapped = DistributedDataParallel(model)
        optimizer = make_optimizer(wrapped.parameters())

        def step(batch):
            mse(wrapped, batch).backward()
            optimizer.step()

        return step

    return workload(own_step=own_step)


@wrong(origin="own", ends="failed", names="the step does not reach them")
def gradients_reset_before_the_step():
    """Gradients are reset after backward, so nothing trains."""

    def reset(model):
        model.zero_grad(set_to_none=False)

    return workload(own_step=ddp_step(after_backward=reset))


@wrong(origin="own", ends="failed")
def two_steps_of_the_optimizer():
    """The optimizer takes two steps with one gradient."""
    return workload(own_step=ddp_step(after_step=lambda optimizer: optimizer.step()))


@wrong(origin="own", ends="failed")
def half_of_the_batch():
    """The step leaves out the second half of its batch."""
    return workload(
        own_step=ddp_step(lambda model, batch: mse(model, [part[: len(part) // 2] for part in batch]))
    )


@wrong(origin="a public report", ends="failed")
def rank_scales_by_a_hook():
    """A hook of the model doubles gradients on the last rank."""
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def own_step(model, make_optimizer):
        if dist.get_rank() == 1:
            model[0].weight.register_hook(lambda gradient: 2 * gradient)
        return ddp_step()(model, make_optimizer)

    return workload(model=net, own_step=own_step)


# ---- loaders ----


def _batches(data, places, size):
    return torch.utils.data.DataLoader(torch.utils.data.Subset(data, list(places)), size)


@wrong(origin="a public report", ends="failed")
def second_rank_has_half_as_many():
    """Ranks with 128 and 64 of 256 samples."""
    data = rows()

    def loader(rank, ranks, size):
        return _batches(data, range(rank, SAMPLES // (1 + rank), ranks), size)

    return workload(data=data, loader=loader, own_step=ddp_step())


@wrong(origin="a public report", ends="failed")
def both_ranks_have_a_quarter():
    """Each rank reads a quarter, so half is never seen."""
    data = rows()

    def loader(rank, ranks, size):
        return _batches(data, range(rank, SAMPLES // 2, ranks), size)

    return workload(data=data, loader=loader, own_step=ddp_step())


@wrong(origin="a public report", ends="failed")
def first_rank_has_half_as_many():
    """Ranks with 64 and 128 of 256 samples."""
    data = rows()

    def loader(rank, ranks, size):
        return _batches(data, range(rank, SAMPLES // (2 - rank), ranks), size)

    return workload(data=data, loader=loader, own_step=ddp_step())


@wrong("ddp", origin="a public report", ends="failed")
def same_samples_on_all_ranks():
    """A loader without shards."""
    data = rows()
    return workload(data=data, loader=lambda rank, ranks, size: _batches(data, range(SAMPLES), size))


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

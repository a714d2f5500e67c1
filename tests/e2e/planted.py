"""Own distributed steps: right ones, and one for each common mistake.

``ringside verify --workload tests/e2e/planted.py:sums --backend own_torch`` must find each.
"""

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from compare.workload import Workload

SAMPLES = 256


def _data():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 3, generator=generator))


def _loss(model, batch):
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def _sharded(rank, ranks, size):
    return DataLoader(_data(), size, sampler=DistributedSampler(_data(), ranks, rank))


def _workload(own_step, loader=_sharded, **changes):
    return Workload(
        model=nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3)),
        data=_data(),
        loss=_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        own_step=own_step,
        loader=loader,
        **changes,
    )


def _by_hand(average, *, before=lambda model: None, steps_at=lambda step: 1):
    """Make a step that averages by hand, with faults."""

    def make_step(model, make_optimizer):
        optimizer = make_optimizer(model.parameters())
        taken = 0

        def step(batch):
            nonlocal taken
            optimizer.zero_grad()
            _loss(model, batch).backward()
            before(model)
            for parameter in model.parameters():
                average(parameter.grad, taken)
            for _ in range(steps_at(taken)):
                optimizer.step()
            taken += 1

        return step

    return make_step


def _mean(gradient, step=0):
    distributed.all_reduce(gradient)
    gradient /= distributed.get_world_size()


def right():
    """Wrap the model by DDP, clip the mean, and follow a schedule."""

    def make_step(model, make_optimizer):
        wrapped = nn.parallel.DistributedDataParallel(model)
        optimizer = make_optimizer(wrapped.parameters())
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

        def step(batch):
            optimizer.zero_grad()
            _loss(wrapped, batch).backward()
            nn.utils.clip_grad_norm_(wrapped.parameters(), 0.5)
            optimizer.step()
            schedule.step()

        return step

    return _workload(
        make_step,
        before_step=lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.5),
        schedule=lambda step: 1 / (1 + step),
    )


def horovod():
    """Wrap the optimizer by Horovod."""
    import horovod.torch as hvd

    def make_step(model, make_optimizer):
        named = list(model.named_parameters())
        optimizer = hvd.DistributedOptimizer(make_optimizer(model.parameters()), named_parameters=named)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)

        def step(batch):
            optimizer.zero_grad()
            _loss(model, batch).backward()
            optimizer.step()

        return step

    return _workload(make_step)


def mpi():
    """Average by MPI."""
    from mpi4py import MPI

    def average(gradient, step):
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, gradient.numpy())
        gradient /= MPI.COMM_WORLD.size

    return _workload(_by_hand(average))


def sums():
    """Add the gradients up, and never divide."""
    return _workload(_by_hand(lambda gradient, step: distributed.all_reduce(gradient)))


def unsharded():
    """Forget the sampler: every rank goes through all samples."""

    def loader(rank, ranks, size):
        return DataLoader(_data(), size, shuffle=True)

    return _workload(_by_hand(_mean), loader=loader)


def clips():
    """Clip before the average."""
    return _workload(
        _by_hand(_mean, before=lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.01)),
        before_step=lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.01),
    )


def scales():
    """Scale the loss for half precision, and forget to scale back."""
    return _workload(_by_hand(lambda gradient, step: _mean(gradient.mul_(1.5))))


def skips():
    """Let rank 1 send zeros in the fourth step."""

    def average(gradient, step):
        if step == 3 and distributed.get_rank() == 1:
            gradient.zero_()
        _mean(gradient)

    return _workload(_by_hand(average))


def steps_twice():
    """Step once more after every fifth step."""
    return _workload(_by_hand(_mean, steps_at=lambda step: 2 if step % 5 == 4 else 1))

"""Train MNIST by hand: a function for each library or mode."""

from __future__ import annotations

import sys

import torch
from torch import nn

from tests.bench.scripts import stopwatch


def main(mode, *given):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if mode in ("horovod", "mpi"):
        rank, world, optimizer, average = (horovod if mode == "horovod" else mpi)(model, optimizer)
        forward = model
    else:
        rank, world, forward, average = with_torch(mode, model)

    def train_step(inputs, targets):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(forward(inputs), targets)
        loss.backward()
        average()
        optimizer.step()

    stopwatch.run(train_step, model, rank, world, *given)
    leave(mode)


def with_torch(mode, model):
    """Join a Gloo process group, under torchrun."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, world, parameters = dist.get_rank(), dist.get_world_size(), list(model.parameters())
    if mode == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return rank, world, DistributedDataParallel(model), lambda: None
    for parameter in parameters:
        dist.broadcast(parameter.data, src=0)
    modes = {"flat": flat, "overlap": overlap, "per_parameter": per_parameter}
    return rank, world, model, modes[mode](parameters, world, dist.all_reduce)


def horovod(model, optimizer):
    import horovod.torch as hvd

    hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    return hvd.rank(), hvd.size(), optimizer, lambda: None


def mpi(model, optimizer):
    from mpi4py import MPI

    world, parameters = MPI.COMM_WORLD, list(model.parameters())
    for parameter in parameters:
        world.Bcast(parameter.detach().numpy(), root=0)

    def all_reduce(tensor):
        world.Allreduce(MPI.IN_PLACE, tensor.numpy())

    return world.rank, world.size, optimizer, flat(parameters, world.size, all_reduce)


def flat(parameters, world, all_reduce):
    """Return a function that averages all gradients in one message."""

    def average():
        message = torch.cat([parameter.grad.view(-1) for parameter in parameters])
        all_reduce(message)
        message /= world
        for parameter, mean in zip(parameters, message.split([p.numel() for p in parameters]), strict=True):
            parameter.grad.copy_(mean.view_as(parameter))

    return average


def overlap(parameters, world, all_reduce):
    """Return a function that waits for the messages that backward started."""
    under_way = []

    def begin(parameter):
        under_way.append(all_reduce(parameter.grad, async_op=True))

    def average():
        while under_way:
            under_way.pop(0).wait()
        for parameter in parameters:
            parameter.grad /= world

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(begin)
    return average


def per_parameter(parameters, world, all_reduce):
    """Return a function that averages one gradient a message."""

    def average():
        for parameter in parameters:
            all_reduce(parameter.grad)
            parameter.grad /= world

    return average


def leave(mode):
    if mode == "horovod":
        import horovod.torch as hvd

        hvd.shutdown()
    elif mode != "mpi":
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

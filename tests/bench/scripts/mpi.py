"""Train MNIST by hand with one MPI_Allreduce for all gradients, under mpirun."""

from __future__ import annotations

import torch
from mpi4py import MPI
from torch import nn

from tests.bench.scripts import stopwatch


def main():
    world = MPI.COMM_WORLD
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    parameters = list(model.parameters())
    for parameter in parameters:
        world.Bcast(parameter.detach().numpy(), root=0)
    optimizer = torch.optim.SGD(parameters, lr=0.01)

    def average():
        flat = torch.cat([parameter.grad.view(-1) for parameter in parameters])
        world.Allreduce(MPI.IN_PLACE, flat.numpy())
        flat /= world.size
        for parameter, mean in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad.copy_(mean.view_as(parameter))

    def train_step(inputs, targets):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        average()
        optimizer.step()

    stopwatch.run(train_step, model, world.rank, world.size)


if __name__ == "__main__":
    main()

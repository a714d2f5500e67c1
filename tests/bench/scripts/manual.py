"""Train MNIST by hand with one all_reduce for all gradients, under torchrun."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from tests.bench.scripts import stopwatch


def main():
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    parameters = list(model.parameters())
    for parameter in parameters:
        dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.SGD(parameters, lr=0.01)

    def average():
        flat = torch.cat([parameter.grad.view(-1) for parameter in parameters])
        dist.all_reduce(flat)
        flat /= world
        for parameter, mean in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad.copy_(mean.view_as(parameter))

    def train_step(inputs, targets):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        average()
        optimizer.step()

    stopwatch.run(train_step, model, dist.get_rank(), world)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

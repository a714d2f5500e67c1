"""Train MNIST by hand with all_reduces that overlap backward, under torchrun."""

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
    under_way = []

    def begin(parameter):
        under_way.append(dist.all_reduce(parameter.grad, async_op=True))

    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
        parameter.register_post_accumulate_grad_hook(begin)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train_step(inputs, targets):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        while under_way:
            under_way.pop(0).wait()
        for parameter in model.parameters():
            parameter.grad /= world
        optimizer.step()

    stopwatch.run(train_step, model, dist.get_rank(), world)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

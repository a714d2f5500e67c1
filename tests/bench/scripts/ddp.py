"""Train MNIST by hand with DistributedDataParallel, under torchrun."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.bench.scripts import stopwatch


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    distributed = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train_step(inputs, targets):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(distributed(inputs), targets)
        loss.backward()
        optimizer.step()

    stopwatch.run(train_step, model, dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

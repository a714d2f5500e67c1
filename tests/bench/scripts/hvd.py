"""Train MNIST by hand with Horovod's DistributedOptimizer, under horovodrun."""

from __future__ import annotations

import horovod.torch as hvd
import torch
from torch import nn

from tests.bench.scripts import stopwatch


def main():
    hvd.init()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
    )

    def train_step(inputs, targets):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()

    stopwatch.run(train_step, model, hvd.rank(), hvd.size())
    hvd.shutdown()


if __name__ == "__main__":
    main()

"""Run the published loop on several ranks with DistributedDataParallel."""

from __future__ import annotations

import os
import sys
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from tests.bench.scripts import published, stopwatch


def main(folder, out, launched_at, steps):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = published.training_set(folder)
    sampler = DistributedSampler(published.Images(images, labels))
    loader = published.endless(images, labels, stopwatch.BATCH, sampler)
    train = partial(published.train, model, optimizer, loader)
    stopwatch.write(out, rank, stopwatch.time_blocks(train, launched_at, steps))
    dist.destroy_process_group()
    sys.stdout.flush()
    # Seen once: a torch thread that outlives the interpreter aborted the process.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

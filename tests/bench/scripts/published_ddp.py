"""Run the published loop on several ranks with DistributedDataParallel."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from tests.bench.scripts import mnist, published, stopwatch


def main(folder, out, launched_at, steps):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = mnist.training_set(folder)
    sampler = DistributedSampler(published.Images(images, labels))
    loader = published.endless(images, labels, stopwatch.BATCH, sampler)
    published.train(model, optimizer, loader, 1)
    first_step = time.time() - float(launched_at)
    published.train(model, optimizer, loader, stopwatch.WARM_UP - 1)
    blocks = []
    for _ in range((int(steps) - stopwatch.WARM_UP) // stopwatch.BLOCK):
        published.train(model, optimizer, loader, 1)  # not timed
        started = time.perf_counter_ns()
        published.train(model, optimizer, loader, stopwatch.BLOCK - 1)
        blocks.append((time.perf_counter_ns() - started) / 1e9 / (stopwatch.BLOCK - 1))
    figures = {
        "step_seconds": blocks,
        "first_step_seconds": first_step,
        "peak_bytes": stopwatch.peak_bytes(),
    }
    Path(out, f"rank-{rank}.json").write_text(json.dumps(figures))
    dist.destroy_process_group()
    sys.stdout.flush()
    # Seen once: a torch thread that outlives the interpreter aborted the process.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""One model twice: as a workload for ``ringside run``, and as a script for ``ringside meter``.

``HIDDEN`` is its width. As a script it prints the seconds of a step, as it takes them from the middle of its
training to the end.
"""

import gc
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from compare.workload import Workload

FEATURES, CLASSES, BATCH, SAMPLES = 128, 10, 64, 8192
_LOSS = nn.functional.cross_entropy


def make():
    """Return a network of three layers, with random samples."""
    hidden = int(os.environ.get("HIDDEN", "256"))
    model = nn.Sequential(
        *(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()),
        nn.Linear(hidden, CLASSES),
    )
    data = TensorDataset(torch.randn(SAMPLES, FEATURES), torch.randint(0, CLASSES, (SAMPLES,)))
    return Workload(
        model=model,
        data=data,
        loss=lambda model, batch: _LOSS(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )


def train(steps):
    """Train as a script does, and return the seconds of a step in the second half."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    task = make()
    model = DistributedDataParallel(task.model)
    optimizer = task.optimizer(model.parameters())
    sampler = DistributedSampler(task.data)
    loader = DataLoader(task.data, batch_size=BATCH, sampler=sampler)
    done, began = 0, time.perf_counter()
    while done < steps:
        for batch in loader:
            optimizer.zero_grad()
            task.loss(model, batch).backward()
            optimizer.step()
            done += 1
            if done == steps // 2:
                began = time.perf_counter()
            if done == steps:
                break
    return (time.perf_counter() - began) / (steps - steps // 2)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    seconds = train(int(sys.argv[1]))
    if dist.get_rank() == 0:
        print(f"{seconds:.9f}")
    gc.collect()  # the model holds the group, whose threads must have ended before the process does
    dist.destroy_process_group()

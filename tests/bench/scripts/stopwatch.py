"""Load MNIST and time the steps, for the hand-written scripts.

It imports nothing of Ringside: it stands for a script of a user without Ringside.
"""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import numpy as np
import torch

BATCH, BLOCK, WARM_UP = 64, 30, 30


def read(folder, kind):
    """Read the normalised images and the labels of ``train`` or ``t10k``."""
    images = _bytes(folder, f"{kind}-images-idx3-ubyte", header=16).view(-1, 784)
    labels = _bytes(folder, f"{kind}-labels-idx1-ubyte", header=8)
    return images.float().div_(255).sub_(0.1307).div_(0.3081), labels.long()


def _bytes(folder, name, header):
    plain = Path(folder, name)
    content = (
        plain.read_bytes() if plain.exists() else gzip.decompress(Path(folder, f"{name}.gz").read_bytes())
    )
    # A copy, because torch refuses read-only memory.
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header).copy())


def batches(images, labels, rank, world):
    """Yield this rank's batches of every epoch, without end."""
    while True:
        order = torch.randperm(len(images))
        steps = len(order) // (BATCH * world)
        for part in order[: steps * world * BATCH].view(steps, world, BATCH)[:, rank]:
            yield images.index_select(0, part), labels.index_select(0, part)


def run(train_step, model, rank, world, folder, out, launched_at, steps):
    """Train in timed blocks as Ringside does, test, and write the figures."""
    images, labels = read(folder, "train")
    walk = batches(images, labels, rank, world)

    def train(count):
        for _ in range(count):
            train_step(*next(walk))

    figures = time_blocks(train, launched_at, steps)
    test(model, folder, rank, world)
    write(out, rank, figures)


def time_blocks(train, launched_at, steps):
    """Train block by block, and time all but the first step."""
    train(1)
    first_step = time.time() - float(launched_at)
    train(WARM_UP - 1)
    blocks = []
    for _ in range((int(steps) - WARM_UP) // BLOCK):
        train(1)
        started = time.perf_counter_ns()
        train(BLOCK - 1)
        blocks.append((time.perf_counter_ns() - started) / 1e9 / (BLOCK - 1))
    return {"step_seconds": blocks, "first_step_seconds": first_step}


def write(out, rank, figures):
    """Write the figures with the peak memory so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    Path(out, f"rank-{rank}.json").write_text(json.dumps(figures | {"peak_bytes": peak}))


@torch.no_grad()
def test(model, folder, rank, world):
    images, labels = read(folder, "t10k")
    images, labels = images[rank::world], labels[rank::world]
    return (model(images).argmax(1) == labels).float().mean().item()

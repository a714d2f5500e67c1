"""Profile the training loop: nothing in it may wait for the device."""

from __future__ import annotations

import os
import sys

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from backends.launchers import read_placement
from compare.worker.loop import train
from compare.worker.mnist import classify
from tests.gpu.sharing import batches, join

WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "aten::item")
LOOP = "the training loop"
STEPS, WARM_UP = 50, 20


def main(kind):
    placement, device = read_placement("torchrun", os.environ), torch.device(kind, 0)
    failed = False
    for name in ("ddp", "manual"):
        group, replica = join(name, placement, device)
        samples = iter(batches(device, placement))
        train(replica, samples, classify, WARM_UP)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        watched = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        with profile(activities=watched) as seen, record_function(LOOP):
            train(replica, samples, classify, STEPS)
        loop = next(event.time_range for event in seen.events() if event.name == LOOP)
        waits = [event.name for event in seen.events() if event.name in WAITS and within(event, loop)]
        print(f"{name}: {len(waits)} waits in {STEPS} steps: {sorted(set(waits))}")
        print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=25))
        failed |= bool(waits)
        group.leave()
    sys.exit(failed)


def within(event, loop):
    """Return whether an event began while the loop ran."""
    return loop.start <= event.time_range.start < loop.end


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")

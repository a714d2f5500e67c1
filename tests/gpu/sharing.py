"""Share one device between two ranks: Gloo trains, and NCCL refuses."""

from __future__ import annotations

import os
import sys

import torch

import backends
from backends.launchers import read_placement
from compare.schema.arms import parse_arm
from compare.schema.config import RunConfig
from compare.worker.loop import train
from compare.worker.mnist import PixelBatches, build_model, classify, optimizer_maker

STEPS = 50
JOIN_SECONDS = 60.0


def main(kind):
    placement, device = read_placement("torchrun", os.environ), torch.device(kind, 0)
    for name in ("ddp:process_group=gloo", "manual:process_group=gloo"):
        group, replica = join(name, placement, device)
        train(replica, iter(batches(device, placement)), classify, STEPS)
        own = torch.cat([p.detach().flatten() for p in replica.model.parameters()])
        largest = own.clone()
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
        assert torch.equal(own, largest), f"{name}: the ranks hold different parameters"
        print(f"rank {placement.rank}: {name} trained {STEPS} steps on {device}, equal on both ranks")
        group.leave()
    if kind == "cuda":
        refuse(placement, device)


def join(name, placement, device):
    """Return the group of an arm, and a replica in it."""
    arm = parse_arm(name)
    make_group, strategy = backends.load(arm.backend, arm.options)
    group = make_group.join(placement, device, arm.options, JOIN_SECONDS)
    torch.manual_seed(0)
    config = settings(placement)
    model = build_model(config.model).to(device)
    return group, strategy(model, optimizer_maker(config), group, arm.options)


def settings(placement):
    return RunConfig(arms=(), ranks=placement.world_size)


def batches(device, placement):
    """Return batches of random pixels, which stay on the device."""
    made = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (6400, 784), dtype=torch.uint8, generator=made)
    labels = torch.randint(0, 10, (6400,), generator=made)
    shard = (placement.rank, placement.world_size)
    return PixelBatches(pixels.to(device), labels.to(device), shard, settings(placement))


def refuse(placement, device):
    """Show what NCCL says of two ranks on one GPU."""
    try:
        group, _ = join("ddp:process_group=nccl", placement, device)
        group.barrier()
    except Exception as error:  # noqa: BLE001 -- torch and NCCL name no type for it
        print(f"rank {placement.rank}: NCCL refuses: {error}")
    else:
        sys.exit("NCCL has taken two ranks on one GPU.")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")

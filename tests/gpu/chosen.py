"""Call NCCL's all-reduce once for some sizes; NCCL_DEBUG prints what it chooses."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=device)
    for size in (1 << 10, 1 << 16, 1 << 20, 1 << 24):
        summed = torch.ones(size // 4, device=device)
        dist.all_reduce(summed)
        assert summed.eq(dist.get_world_size()).all()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

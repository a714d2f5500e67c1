"""A training script that starts its ranks itself, as ``python spawn.py METHOD STEPS PORT``."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel


def work(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world, init_method=f"tcp://127.0.0.1:{PORT}")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(int(sys.argv[2])):
        optimizer.zero_grad()
        model(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    sys.stdout.write(f"rank {rank} took {sys.argv[2]} steps\n")


PORT = int(sys.argv[3])
if __name__ == "__main__":
    mp.start_processes(work, args=(2,), nprocs=2, start_method=sys.argv[1])

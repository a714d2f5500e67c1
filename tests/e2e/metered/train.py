"""A training script as people write them, which knows nothing of a meter."""

import argparse
import contextlib
import gc
import hashlib
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batches", type=int, default=60)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--infinite", action="store_true", help="one rank has an infinite gradient now and then")
parser.add_argument("--computing", type=float, default=0.0, help="seconds to sleep in each forward pass")
parser.add_argument("--synchronising", type=float, default=0.0, help="seconds to sleep in each all-reduce")
parser.add_argument("--end", default="", help="how to end in the middle of an epoch")
args = parser.parse_args()


def fail():
    raise RuntimeError("this script is wrong")


ENDS = {
    "exit": lambda: sys.exit(3),
    "_exit": lambda: os._exit(0),
    "error": fail,
    "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def hash_of(module):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in module.parameters())).hexdigest()[
        :16
    ]


def slow_hook(state, bucket):
    time.sleep(args.synchronising)
    work = dist.all_reduce(bucket.buffer() / dist.get_world_size(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
count = args.batches * 16 * dist.get_world_size()
data = TensorDataset(torch.randn(count, 32), torch.randint(0, 10, (count,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
net = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
average = torch.optim.swa_utils.AveragedModel(net)
model = DistributedDataParallel(net)
if args.synchronising:
    model.register_comm_hook(None, slow_hook)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 50)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

steps = 0
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    model.train()
    for number, (x, y) in enumerate(loader, start=1):
        due = number % args.accumulate == 0
        with contextlib.nullcontext() if due else model.no_sync():
            time.sleep(args.computing)
            loss = nn.functional.cross_entropy(model(x), y) / args.accumulate
            if args.infinite and due and steps % 7 == 3 and dist.get_rank() == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
        if due:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            schedule.step()
            average.update_parameters(net)
            steps += 1
        if args.end and epoch == 1 and number == args.batches // 2:
            ENDS[args.end]()
    model.eval()
    with torch.no_grad():
        right = (model(data.tensors[0][:64]).argmax(1) == data.tensors[1][:64]).sum()
    dist.all_reduce(right)
line = f"rank {dist.get_rank()} {hash_of(net)} {hash_of(average)} {steps} {scaler.get_scale()}\n"
sys.stdout.write(line)  # print would write the newline apart, and lines of ranks would mix
# A thread of Gloo frees an all-reduce some time after it is done, and takes Python's lock for that. If the
# process ends meanwhile, torch 2.13 aborts it. A group joins its threads once nothing holds it, but the model
# does, in a cycle of references.
del model
gc.collect()
dist.destroy_process_group()

"""Train some arms as one rank, and print for each what its steps asked for and what the kernel counted.

Usage: ``python -m tests.lab.steps RANK WORLD_SIZE RANKS_PER_HOST ADDRESS ARM…``. The counters are those of
eth0, which all ranks of a host share.
"""

import json
import os
import sys

import psutil
import torch
from torch import nn

import backends
from backends.base import Placement
from backends.groups.torch_group import TorchGroup
from compare.schema.arms import parse_arm

STEPS = 10
PARAMETERS = 6
"""Number of the model's parameters."""
HEADER_BYTES = 66
"""Bytes of a packet's headers: Ethernet 14, IPv4 20, TCP with time stamps 32."""


def main(rank, world, per_host, address, *arms):
    os.environ.update(MASTER_ADDR=address, MASTER_PORT="29533", GLOO_SOCKET_IFNAME="eth0")
    torch.set_num_threads(1)
    host, local_rank = divmod(int(rank), int(per_host))
    placement = Placement(int(rank), local_rank, int(world), int(per_host), f"n{host + 1}")
    group = TorchGroup.join(placement, torch.device("cpu"), {}, timeout_seconds=60)
    found = {arm: _sent(parse_arm(arm), group) for arm in arms}
    group.leave()
    print(json.dumps(found))


def _sent(arm, group):
    """Return the calls of one step, and the bytes that this host sent in one, without headers."""
    _, make_replica = backends.load(arm.backend, arm.options)
    torch.manual_seed(1)
    # The rows of a layer are no multiple of the ranks, so shards are padded.
    model = nn.Sequential(nn.Linear(501, 601), nn.Tanh(), nn.Linear(601, 303), nn.Tanh(), nn.Linear(303, 7))
    replica = make_replica(model, torch.optim.Adam, group, arm.options)
    batch = torch.randn(4, 501)

    def step():
        replica.learn(batch, lambda module, samples: module(samples).square().mean())
        replica.sync()
        nn.utils.clip_grad_norm_(replica.parameters, 1e6)  # of shards, this is an all-reduce of a norm
        replica.step()

    for _ in range(3):
        step()
    recorded = group.record(step)
    group.barrier()
    before = psutil.net_io_counters(pernic=True)["eth0"]
    for _ in range(STEPS):
        step()
    group.barrier()
    after = psutil.net_io_counters(pernic=True)["eth0"]
    headers = HEADER_BYTES * (after.packets_sent - before.packets_sent)
    return {
        "calls": [call._asdict() for call in recorded.calls],
        "sent": (after.bytes_sent - before.bytes_sent - headers) / STEPS,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])

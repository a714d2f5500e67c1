"""Train three models for two steps in every strategy that shards, and write what each rank then holds.

Usage: python -m tests.contract.memory FOLDER RANKS…

One process loads torch, and forks so many ranks, for each number of ranks in turn.
"""

import json
import os
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch import nn

import backends
from backends.base import Placement
from compare.schema.arms import parse_arm
from compare.worker.blocks import Side
from compare.worker.held import take_counted_step
from compare.worker.observed import describe_parameters
from tests.unit.factories import a_config

MODELS = {
    "even": lambda: chain(32, 64, 64, 32, 8),
    # No width divides by 4, the last layer has fewer rows than ranks, and half of all bytes are one tensor.
    "uneven": lambda: chain(33, 127, 45, 19, 3),
    "frozen": lambda: freeze_first(chain(24, 48, 31, 17, 5)),
}
ARMS = (
    "none",
    "ddp",
    "zero",
    "fsdp",
    "fsdp:reshard_after_forward=false",
    "fsdp:units=model",
    "modelparallel",
)


def chain(*widths):
    """Return a chain of layers of these widths."""
    return nn.Sequential(*(nn.Linear(*pair) for pair in pairwise(widths)))


def freeze_first(model):
    """Return a model whose first layer is not trained."""
    model[0].requires_grad_(requires_grad=False)
    return model


def loss(model, batch):
    return model(batch).square().mean()


@cache
def join(make_group, placement):
    """Join a group, which all arms over it share."""
    return make_group.join(placement, torch.device("cpu"), parse_arm("ddp").options, 60.0)


def observe(arm, build, placement):
    """Return what this rank holds of a model after two steps of Adam."""
    arm = parse_arm(arm)
    make_group, make_replica = backends.load(arm.backend, arm.options)
    group = join(make_group, placement)
    torch.manual_seed(0)
    replica = make_replica(build(), lambda ps: torch.optim.Adam(ps, lr=1e-3), group, arm.options)
    width = build()[0].in_features
    side = Side(replica, iter([torch.ones(8, width)] * 4), loss)
    side.train(1)
    held = take_counted_step(side, a_config("ddp"))
    return replica.held_bytes() | held | {"first_layers": replica.attest().get("first_layers", [])}


def main():
    """Launch every number of ranks, and exit with 1 if a rank fails."""
    folder, *worlds = sys.argv[1:]
    torch.optim.Adam(chain(1, 1).parameters())  # this loads what a first optimizer needs
    for arm in map(parse_arm, ARMS):
        backends.load(arm.backend, arm.options)
    for world in map(int, worlds):
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # as torchrun has one
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), WORLD_SIZE=str(world))
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        pids = [fork(Path(folder), rank, world) for rank in range(world)]
        statuses = [os.waitpid(pid, 0)[1] for pid in pids]
        if any(statuses):
            sys.exit(f"{world} ranks ended with {statuses}")


def fork(folder, rank, world):
    """Start a rank, which exits with 1 and a traceback if it fails."""
    if pid := os.fork():
        return pid
    write_observed(folder / f"{rank}-of-{world}.json", rank, world)
    os._exit(0)


def write_observed(file, rank, world):
    """Observe every arm with every model, and write it all into one file."""
    os.environ["RANK"] = str(rank)
    placement = Placement(rank, rank, world, world, "here")
    torch.set_num_threads(1)
    found = {}
    for name, build in MODELS.items():
        held = {arm: observe(arm, build, placement) for arm in ARMS}
        found[name] = {"parameters": msgspec.to_builtins(describe_parameters(build())), "held": held}
    file.write_text(json.dumps(found))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

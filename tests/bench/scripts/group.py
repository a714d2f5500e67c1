"""Join a group and make replicas of arms, without the product's launch."""

from __future__ import annotations

import os

import torch

import backends
from backends.launchers import LAUNCHERS
from compare.schema.arms import parse_arm
from compare.schema.config import RunConfig
from compare.worker.mnist import PixelBatches, as_tensors, build_model, optimizer_maker
from tests.bench.scripts import published

CPU = torch.device("cpu")
_TIMEOUT_SECONDS = 60


def join(label):
    """Join the group of an arm; its launcher started this process."""
    torch.set_num_threads(1)
    arm = parse_arm(label)
    make_group, _ = backends.load(arm.backend, arm.options)
    placement = LAUNCHERS[backends.BACKENDS[arm.backend].launcher].placement(os.environ)
    return make_group.join(placement, CPU, arm.options, _TIMEOUT_SECONDS)


def images(folder):
    return as_tensors(*published.training_set(folder), CPU)


def replica_of(label, group, model, tensors):
    """Return a new replica of an arm with its batches."""
    arm = parse_arm(label)
    config = RunConfig(arms=(arm,), model=model, ranks=group.world_size)
    _, make_replica = backends.load(arm.backend, arm.options)
    torch.manual_seed(0)
    replica = make_replica(build_model(model), optimizer_maker(config), group, arm.options)
    return replica, iter(PixelBatches(*tensors, replica.shard, config))

"""The arm and its reference, in one process: one rank, plain replicas, no launcher."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from backends.strategies.local import LocalReplica
from compare.turns import make_reference
from compare.workload import Batches
from tests.unit.factories import a_config

GROUP = SimpleNamespace(rank=0, world_size=1, device=torch.device("cpu"))


def test_the_reference_takes_as_many_passes_a_step_as_the_arm():
    config = a_config("ddp", ranks=1, accumulate=3, batch_size_per_rank=4, model="mlp:784-8-10")
    images, labels = torch.randn(240, 784), torch.randint(10, (240,))
    side = make_reference(LocalReplica, config, iter(Batches(images, labels, (0, 1), config)), GROUP)
    assert side.replica.passes_per_step == 3

"""Test what Lightning Fabric cannot do here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from backends.base import BackendError, Placement
from compare.schema.arms import parse_arm

lightning = pytest.importorskip("backends.strategies.lightning", reason="lightning_fabric is not installed")


def test_hosts_with_different_numbers_of_ranks_are_refused():
    placement = Placement(rank=0, local_rank=0, world_size=3, local_world_size=2, host="n1")
    group = SimpleNamespace(placement=placement, device=torch.device("cpu"), rank=0, world_size=3)
    with pytest.raises(BackendError, match="the same number of ranks on every host, but n1 has 2 of all 3"):
        lightning.LightningReplica(nn.Linear(2, 2), None, group, parse_arm("lightning").options)

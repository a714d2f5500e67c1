"""Test what Horovod's group tells and refuses, without starting Horovod."""

from __future__ import annotations

import pytest
import torch

from backends.base import BackendError, Placement

group = pytest.importorskip(
    "backends.groups.horovod_group", reason="Horovod is not installed", exc_type=ImportError
)


def test_horovod_without_cuda_is_refused_on_a_gpu(monkeypatch):
    monkeypatch.setattr(group.hvd, "cuda_built", lambda: False)
    placement = Placement(rank=0, local_rank=0, world_size=1, local_world_size=1, host="here")
    with pytest.raises(BackendError, match="built without CUDA, but the run is on a GPU"):
        group.HorovodGroup.join(placement, torch.device("cuda"), {"controller": "gloo"}, 10)


@pytest.mark.parametrize(
    ("device", "code", "versions"), [("cuda", 22809, {"nccl": "2.28.9"}), ("cuda", 0, {}), ("cpu", 22809, {})]
)
def test_horovod_attests_the_nccl_that_carries_it(monkeypatch, device, code, versions):
    monkeypatch.setattr(group.hvd, "nccl_built", lambda: code)
    placement = Placement(rank=0, local_rank=0, world_size=1, local_world_size=1, host="here")
    assert group.HorovodGroup(placement, torch.device(device), {})._nccl() == versions

"""Test what Horovod's group refuses before Horovod starts."""

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

"""What groups tell of their libraries, without starting these."""

from __future__ import annotations

import pytest
import torch

from backends import evidence
from backends.base import BackendError, Placement


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("Open MPI v4.1.8, package: Open MPI root@host, ident: 4.1.8, Feb 04, 2025\x00", "Open MPI v4.1.8"),
        ("MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25\nMPICH ABI:  17:2:5\n", "MPICH 5.0.2"),
    ],
)
def test_mpi_library_is_named_with_its_version(printed, name):
    assert evidence.mpi_library(printed) == name


@pytest.mark.parametrize(
    ("segments", "interfaces", "transport"),
    [
        (["mpich_shm_38bcfbfe_0"], [], "shared memory"),
        (["ringside-1/vader_segment.n.0.1"], ["lo"], "shared memory"),
        (["sem.mp-x"], ["lo"], "TCP over lo"),
        (["mpich_shm_38bcfbfe_0"], ["eth0"], "shared memory, TCP over eth0"),
    ],
)
def test_mpi_transport_is_read_from_the_kernel(monkeypatch, segments, interfaces, transport):
    monkeypatch.setattr(evidence, "shared_segments", lambda: segments)
    monkeypatch.setattr(evidence, "socket_interfaces", lambda: interfaces)
    assert evidence.mpi_transport(2) == transport


@pytest.fixture(scope="module")
def horovod():
    return pytest.importorskip(
        "backends.groups.horovod_group", reason="Horovod is not installed", exc_type=ImportError
    )


ALONE = Placement(rank=0, local_rank=0, world_size=1, local_world_size=1, host="here")


def test_horovod_without_cuda_is_refused_on_a_gpu(horovod, monkeypatch):
    monkeypatch.setattr(horovod.hvd, "cuda_built", lambda: False)
    with pytest.raises(BackendError, match="built without CUDA, but the run is on a GPU"):
        horovod.HorovodGroup.join(ALONE, torch.device("cuda"), {"controller": "gloo"}, 10)


@pytest.mark.parametrize(
    ("device", "code", "versions"), [("cuda", 22809, {"nccl": "2.28.9"}), ("cuda", 0, {}), ("cpu", 22809, {})]
)
def test_horovod_attests_the_nccl_that_carries_it(horovod, monkeypatch, device, code, versions):
    monkeypatch.setattr(horovod.hvd, "nccl_built", lambda: code)
    assert horovod.HorovodGroup(ALONE, torch.device(device), {})._nccl_fact() == versions

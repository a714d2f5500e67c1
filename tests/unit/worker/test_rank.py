"""Test which device a rank gets, and what NCCL takes it for."""

import os

import pytest
import torch

from backends.base import BackendError, Placement
from compare.schema.job import SweepJob
from compare.worker.rank import _prepare_device
from tests.unit.collectives import a_sweep_config


@pytest.fixture
def prepare(monkeypatch):
    """Prepare the devices of ranks on a host with some GPUs; return each index with NCCL's host."""

    def call(ranks, gpus, **changes):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        chosen = []
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append(device.index))
        config = a_sweep_config(ranks=2 * ranks, device="cuda", **changes)
        affinity = sorted(os.sched_getaffinity(0))
        job = SweepJob(
            config=config, group="nccl", arm=config.arm_of("nccl"), affinity=affinity, number=1, launched_at=0
        )
        hosts = []
        for host, local_rank in [(host, local_rank) for host in range(2) for local_rank in range(ranks)]:
            monkeypatch.delenv("NCCL_HOSTID", raising=False)
            placement = Placement(host * ranks + local_rank, local_rank, 2 * ranks, ranks, f"n{host}")
            assert _prepare_device(job, placement).index == chosen[-1]
            hosts.append(os.environ.get("NCCL_HOSTID"))
        return chosen, hosts

    return call


@pytest.mark.parametrize(
    ("gpus", "chosen"), [(1, [0, 0, 0, 0]), (2, [0, 1, 0, 1]), (3, [0, 1, 2, 0]), (4, [0, 1, 2, 3])]
)
def test_ranks_that_share_gpus_are_hosts_of_their_own_to_nccl(prepare, gpus, chosen):
    taken, hosts = prepare(4, gpus, shares_gpus=True)
    assert taken == chosen * 2
    assert None not in hosts
    assert len(set(hosts)) == 8


def test_ranks_with_a_gpu_each_leave_the_host_to_nccl(prepare):
    assert prepare(2, 2) == ([0, 1, 0, 1], [None] * 4)


@pytest.mark.parametrize(("gpus", "changes"), [(1, {}), (0, {"shares_gpus": True})])
def test_rank_without_a_gpu_is_refused(prepare, gpus, changes):
    with pytest.raises(BackendError, match=f"no GPU of its own, because torch finds {gpus}"):
        prepare(2, gpus, **changes)

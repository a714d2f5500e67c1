"""Test that the ddp arm is torch's DDP with torch's defaults."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from backends import BACKENDS
from backends.base import BackendError
from backends.strategies.ddp import DDPReplica
from compare.worker.mnist import build_model

BATCH = torch.zeros(4, 784), torch.zeros(4, dtype=torch.int64)


def buckets_of(wrapped):
    for _ in range(3):  # the buckets are rebuilt in the second step, and reported in the third
        nn.functional.cross_entropy(wrapped(BATCH[0]), BATCH[1]).backward()
    seen = wrapped._get_ddp_logging_data()
    return [int(size) for size in seen["rebuilt_bucket_sizes"].split(",")]


def replica_of(group, model="convnet", **given):
    options = {option.name: option.default for option in BACKENDS["ddp"].options} | given
    return DDPReplica(build_model(model), lambda p: torch.optim.SGD(p, lr=0.01), group, options)


def test_ddp_by_default_has_the_buckets_of_plain_ddp(group):
    """Expect two buckets: torch's first one is small, to start early."""
    ours = buckets_of(replica_of(group).wrapped)
    assert ours == buckets_of(DistributedDataParallel(build_model("convnet")))
    assert len(ours) == 2


@pytest.mark.parametrize(
    "given", [{"comm_hook": "none"}, {"comm_hook": "fp16"}, {"comm_hook": "powersgd", "powersgd_rank": 2}]
)
def test_ddp_comm_hook_is_the_one_that_torch_runs(group, given):
    # A model of one bucket: PowerSGD's callbacks wait, and those of two can fill both threads of Gloo.
    replica = replica_of(group, "mlp:784-16-10", **given, powersgd_start=2)
    buckets_of(replica.wrapped)
    facts = replica.attest()
    assert {name: facts[name] for name in given} == given
    if "powersgd_rank" in given:
        assert facts["powersgd_start"] == 2
        assert 0 < facts["elements_after_compression"] < facts["elements_before_compression"]


def test_ddp_hook_that_torch_refuses_on_the_cpu_is_an_error(group, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)  # a build for CUDA takes the hook on the CPU too
    with pytest.raises(BackendError, match=r"comm_hook=bf16 here: BF16 .* required CUDA"):
        replica_of(group, comm_hook="bf16")


def test_ddp_static_graph_with_accumulation_is_an_error(group):
    replica = replica_of(group, static_graph=True)
    replica.accumulate(1)
    with pytest.raises(BackendError, match="static_graph=true"):
        replica.accumulate(2)


def test_ddp_repeats_no_collectives_of_several_dtypes(group):
    """DDP does not say which dtype a bucket has."""
    options = {option.name: option.default for option in BACKENDS["ddp"].options}
    for dtype, repeats in ((torch.float32, True), (torch.float64, False)):
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, dtype=dtype))
        replica = DDPReplica(model, lambda p: torch.optim.SGD(p, lr=0.01), group, options)
        assert (replica.collectives() is not None) == repeats


def test_group_attests_the_class_of_its_process_group(group):
    assert group.attest()["process_group"] == "ProcessGroupGloo"

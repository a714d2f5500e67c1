"""What strategies hold, attest and refuse: DDP with torch's defaults, local SGD, the user's own step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from backends import BACKENDS
from backends.base import BackendError, Placement
from backends.strategies.averaging import AveragingReplica
from backends.strategies.data_parallel import DataParallelReplica
from backends.strategies.ddp import DDPReplica
from backends.strategies.fsdp import FSDPReplica, find_units
from backends.strategies.local_sgd import LocalSGDReplica
from backends.strategies.own import OwnReplica
from compare.schema.arms import parse_arm
from compare.worker.mnist import build_model, classify

BATCH = torch.ones(4, 3), torch.ones(4, 2)
IMAGES, CLASSES = torch.zeros(4, 784), torch.zeros(4, dtype=torch.int64)


def plain_sgd(parameters):
    return torch.optim.SGD(parameters, lr=1.0)


# ---- DDP ----


def buckets_of(wrapped):
    for _ in range(3):  # the buckets are rebuilt in the second step, and reported in the third
        nn.functional.cross_entropy(wrapped(IMAGES), CLASSES).backward()
    seen = wrapped._get_ddp_logging_data()
    return [int(size) for size in seen["rebuilt_bucket_sizes"].split(",")]


def ddp(group, model="convnet", **given):
    options = {option.name: option.default for option in BACKENDS["ddp"].options} | given
    return DDPReplica(build_model(model), plain_sgd, group, options)


def test_ddp_by_default_has_the_buckets_of_plain_ddp(group):
    """Expect two buckets: torch's first one is small, to start early."""
    ours = buckets_of(ddp(group).wrapped)
    assert ours == buckets_of(DistributedDataParallel(build_model("convnet")))
    assert len(ours) == 2


@pytest.mark.parametrize(("as_view", "share"), [(False, 1), (True, 0)])
def test_ddp_keeps_buckets_beside_gradients_that_are_no_views_of_them(group, as_view, share):
    replica = ddp(group, gradient_as_bucket_view=as_view)
    buckets_of(replica.wrapped)
    assert replica.library_bytes() == share * replica.held_bytes()["parameter_bytes"]


@pytest.mark.parametrize(("mode", "share"), [("per_parameter", 0), ("flat", 1), ("overlap", 0)])
def test_averaging_counts_its_bucket_where_backward_left_other_gradients(group, mode, share):
    options = {option.name: option.default for option in BACKENDS["manual"].options} | {"mode": mode}
    replica = AveragingReplica(build_model("convnet"), plain_sgd, group, options)
    for _ in range(2):  # overlap learns in the first step when a bucket is full
        replica.learn((IMAGES, CLASSES), classify)
        kept = replica.library_bytes()
        replica.sync()
        replica.step()
    assert kept == share * replica.held_bytes()["parameter_bytes"]


@pytest.mark.parametrize(
    "given", [{"comm_hook": "none"}, {"comm_hook": "fp16"}, {"comm_hook": "powersgd", "powersgd_rank": 2}]
)
def test_ddp_comm_hook_is_the_one_that_torch_runs(group, given):
    # A model of one bucket: PowerSGD's callbacks wait, and those of two can fill both threads of Gloo.
    replica = ddp(group, "mlp:784-16-10", **given, powersgd_start=2)
    buckets_of(replica.wrapped)
    facts = replica.attest()
    assert {name: facts[name] for name in given} == given
    if "powersgd_rank" in given:
        assert facts["powersgd_start"] == 2
        assert 0 < facts["elements_after_compression"] < facts["elements_before_compression"]


def test_ddp_hook_that_torch_refuses_on_the_cpu_is_an_error(group, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)  # a build for CUDA takes the hook on the CPU too
    with pytest.raises(BackendError, match=r"comm_hook=bf16 here: BF16 .* required CUDA"):
        ddp(group, comm_hook="bf16")


def test_ddp_static_graph_with_accumulation_is_an_error(group):
    replica = ddp(group, static_graph=True)
    replica.accumulate(1)
    with pytest.raises(BackendError, match="static_graph=true"):
        replica.accumulate(2)


def test_ddp_repeats_no_collectives_of_several_dtypes(group):
    """DDP does not say which dtype a bucket has."""
    options = {option.name: option.default for option in BACKENDS["ddp"].options}
    for dtype, repeats in ((torch.float32, True), (torch.float64, False)):
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, dtype=dtype))
        replica = DDPReplica(model, plain_sgd, group, options)
        assert (replica.collectives() is not None) == repeats


def test_group_attests_the_class_of_its_process_group(group):
    assert group.attest()["process_group"] == "ProcessGroupGloo"


# ---- local SGD ----


def local_sgd(group, *, optimizer=torch.optim.SGD, period=1, outer="none"):
    options = {"period": period, "outer": outer}
    return LocalSGDReplica(nn.Linear(3, 2), lambda p: optimizer(p, lr=0.1), group, options)


def take_step(replica):
    replica.learn(BATCH, lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
    replica.sync()
    replica.step()


@pytest.mark.parametrize(
    ("changes", "reduce_op"),
    [
        ({}, "mean"),
        ({"period": 8}, "mean of parameters, period 8"),
        ({"optimizer": torch.optim.Adam}, "mean of parameters, period 1"),
        ({"outer": "nesterov"}, "mean of parameters, period 1"),
    ],
)
def test_localsgd_attests_averaged_gradients_only_where_a_step_is_linear(group, changes, reduce_op):
    assert local_sgd(group, **changes).attest()["reduce_op"] == reduce_op


def test_localsgd_within_a_period_returns_a_copy(group):
    replica = local_sgd(group, period=2)
    take_step(replica)
    copied = replica.whole()
    assert copied is not replica.model
    assert torch.equal(copied.weight, replica.model.weight)
    with torch.no_grad():
        copied.weight.zero_()
    assert replica.model.weight.any()
    take_step(replica)
    assert replica.whole() is replica.model


def test_localsgd_counts_the_state_of_its_outer_optimizer(group):
    assert "outer_bytes" not in local_sgd(group).held_bytes()
    replica = local_sgd(group, outer="nesterov")
    take_step(replica)
    held = replica.held_bytes()
    assert held["outer_bytes"] == 2 * held["parameter_bytes"]


# ---- the user's own step ----


def make_step(model, make_optimizer):
    optimizer = make_optimizer(model.parameters())

    def step(batch):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return step


def own(step=make_step):
    group = SimpleNamespace(rank=1, world_size=3)
    return OwnReplica(nn.Linear(2, 1), plain_sgd, group, {}, make_step=step)


def test_own_replica_learns_by_the_users_step_alone():
    replica, phases = own(), []
    before = replica.whole().weight.detach().clone()
    replica.learn(torch.ones(1, 2), None, phases.append)
    assert torch.equal(replica.whole().weight, before - 1)
    replica.sync()
    replica.step()
    assert torch.equal(replica.whole().weight, before - 1)
    assert phases == list(replica.phases) == ["backward"]
    assert replica.shard == (1, 3)
    assert replica.takes_whole_step


def test_own_replica_needs_an_optimizer_that_the_proof_can_choose():
    def without(model, make_optimizer):
        optimizer = torch.optim.Adam(model.parameters())
        return lambda batch: optimizer.step()

    with pytest.raises(BackendError, match=r"Write optimizer = make_optimizer\(model.parameters\(\)\)"):
        own(without)


def test_own_replica_takes_one_batch_a_step():
    own().accumulate(1)
    with pytest.raises(BackendError, match="Leave out --accumulate"):
        own().accumulate(2)


# ---- what cannot run here ----


def test_fabric_refuses_hosts_with_different_numbers_of_ranks():
    lightning = pytest.importorskip(
        "backends.strategies.lightning", reason="lightning_fabric is not installed"
    )
    placement = Placement(rank=0, local_rank=0, world_size=3, local_world_size=2, host="n1")
    group = SimpleNamespace(placement=placement, device=torch.device("cpu"), rank=0, world_size=3)
    with pytest.raises(BackendError, match="the same number of ranks on every host, but n1 has 2 of all 3"):
        lightning.LightningReplica(nn.Linear(2, 2), None, group, parse_arm("lightning").options)


def test_dataparallel_refuses_a_host_without_its_gpus(group):
    with pytest.raises(BackendError, match="gpus=2 needs 2 GPUs on one host, but torch finds 0"):
        DataParallelReplica(nn.Linear(3, 2), plain_sgd, group, {"gpus": 2})


# ---- units of FSDP ----


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)


class Tied(nn.Module):
    """A model with blocks between two layers that share their weight."""

    def __init__(self, blocks=2):
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.blocks = nn.ModuleList([Block() for _ in range(blocks)])
        self.head.weight = self.embedding.weight


class Towers(nn.Module):
    """Two towers of one class, each with blocks, as models of images and texts have them."""

    def __init__(self):
        super().__init__()
        self.image, self.text = Tied(), Tied()


class Chain(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.ReLU())


class Wraps(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.model = nn.Sequential(*layers)


class Names(nn.Module):
    """A model that names the class of its blocks, which it has only once, as models of Hugging Face do."""

    _no_split_modules = ("Block",)

    def __init__(self):
        super().__init__()
        self.first, self.block, self.last = nn.Linear(4, 4), Block(), Chain()


@pytest.mark.parametrize(
    ("model", "kind", "units"),
    [
        (Wraps(Names(), Names()), "blocks", ["Block", "Block"]),
        (Names(), "layers", ["Linear", "Block", "Chain"]),
        (Names(), "blocks", ["Linear", "Block", "Chain"]),  # one alone would gather all of the model at once
        (Tied(), "blocks", ["Block", "Block"]),
        (Towers(), "blocks", ["Block"] * 4),
        (nn.Sequential(Chain(), Chain()), "blocks", ["Chain", "Chain"]),
        (Wraps(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), "blocks", ["Linear", "Linear"]),
        (nn.Sequential(Tied(3), nn.Linear(5, 2)), "blocks", ["Block", "Block", "Block"]),
        (nn.Sequential(Block(), nn.ReLU(), Block()), "blocks", ["Block", "Block"]),
        (Tied(), "layers", ["Block", "Block"]),
        (Tied(), "model", []),
        (Tied(blocks=1), "blocks", ["Block"]),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), "blocks", ["Linear", "Linear"]),
        (nn.Sequential(nn.Linear(4, 4)), "layers", []),
        (nn.Sequential(*[Block()] * 2), "blocks", []),
    ],
)
def test_units_of_fsdp_are_blocks_or_layers_that_share_nothing(model, kind, units):
    assert [type(unit).__name__ for unit in find_units(model, kind)] == units


def test_fsdp_names_a_parameter_that_it_cannot_divide(group):
    model = nn.Linear(3, 2)
    model.scale = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(BackendError, match=r"these have none: scale\. Give them the shape"):
        FSDPReplica(model, plain_sgd, group, parse_arm("fsdp").options)


def test_fsdp_counts_whole_gradients_between_passes_and_nothing_on_its_way(group):
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    replica = FSDPReplica(model, plain_sgd, group, parse_arm("fsdp").options)
    assert replica.library_bytes() == 0
    replica.accumulate(2)
    assert replica.library_bytes() == 4 * (6 + 2 + 2 + 1)
    ahead = FSDPReplica(nn.Linear(3, 2), plain_sgd, group, parse_arm("fsdp:prefetch=1").options)
    assert ahead.library_bytes() is None


def test_fsdp_prefetches_the_next_units_in_both_directions(group):
    layers = [nn.Linear(2, 2) for _ in range(4)]
    model = FSDPReplica(nn.Sequential(*layers), plain_sgd, group, parse_arm("fsdp:prefetch=2").options).model
    states = [unit._get_fsdp_state() for unit in (*model, model)]
    ahead = {
        states.index(state): (
            [states.index(other) for other in state._states_to_forward_prefetch],
            [states.index(other) for other in state._states_to_backward_prefetch],
        )
        for state in states
    }
    assert ahead == {
        0: ([1, 2], []),
        1: ([2, 3], [0]),
        2: ([3], [1, 0]),
        3: ([], [2, 1]),
        4: ([0, 1], [3, 2]),
    }

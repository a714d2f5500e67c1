"""How synchronising is switched off and on, and what cannot be switched."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from compare.meter.by_hand import ByHand
from compare.meter.ddp import Ddp
from compare.meter.found import copies_of, find_unswitchable
from compare.meter.ranks import DisagreementError, StoreRanks
from compare.meter.reads import noticing_reads
from compare.meter.switches import find_ways


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def wrapper():
    return DistributedDataParallel(nn.Linear(4, 2))


def synchronises(wrapper):
    return wrapper.require_backward_grad_sync


def test_ddp_is_found_and_described(wrapper):
    optimizer = torch.optim.SGD(wrapper.parameters())
    way = next(way for way in find_ways([optimizer]) if way.models == [wrapper])
    described = way.describe()
    assert (described.way, described.model, described.tensors) == ("ddp", "Linear", 2)
    assert described.gradient_bytes == 40


def test_ddp_is_switched_off_and_on(wrapper):
    way = Ddp(wrapper)
    way.switch(on=False)
    assert not synchronises(wrapper)
    way.switch(on=True)
    assert synchronises(wrapper)


@pytest.mark.parametrize(("before", "inside", "after"), [(True, True, True), (False, False, False)])
def test_the_scripts_own_no_sync_wins_inside(wrapper, before, inside, after):
    way = Ddp(wrapper)
    with way.measuring():
        way.switch(on=before)
        with wrapper.no_sync():
            assert not synchronises(wrapper)
            way.switch(on=inside)
            assert not synchronises(wrapper)
        assert synchronises(wrapper) is after


@pytest.mark.parametrize("on", [False, True])
def test_a_switch_inside_the_scripts_own_no_sync_counts_after_it(wrapper, on):
    way = Ddp(wrapper)
    original = DistributedDataParallel.no_sync
    with way.measuring():
        way.switch(on=not on)
        with wrapper.no_sync(), wrapper.no_sync():
            way.switch(on=on)
        assert synchronises(wrapper) is on
    assert DistributedDataParallel.no_sync is original


def test_buffers_are_broadcast_again_after_a_local_block(wrapper):
    way = Ddp(wrapper)
    way.switch(on=False)
    wrapper(torch.zeros(1, 4)).sum().backward()
    assert not wrapper.require_forward_param_sync
    way.switch(on=True)
    assert wrapper.require_forward_param_sync


def test_only_all_reduces_of_gradients_are_left_out(monkeypatch):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters())
    reduced = []
    monkeypatch.setattr(dist, "get_world_size", lambda _=None: 2)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, *_, **__: reduced.append(tensor.numel()))

    def step():
        model(torch.ones(1, 3)).sum().backward()
        dist.all_reduce(torch.ones(1))
        for parameter in model.parameters():
            work = dist.all_reduce(parameter.grad, async_op=True)
            if work:
                work.wait()
        way.step_ended()

    way = ByHand([optimizer], [model])
    with way.measuring():
        way.begin_learning()
        step()
        way.end_learning()
        assert way.obstacle == ""
        assert reduced == [1, 3, 1]
        way.switch(on=False)
        step()
        assert reduced == [1, 3, 1, 1]
        way.switch(on=True)
        step()
    assert reduced == [1, 3, 1, 1, 1, 3, 1]


def test_wrappers_are_in_the_order_of_the_optimizers_parameters():
    wrappers = [DistributedDataParallel(nn.Linear(4, 2)) for _ in range(3)]
    for order in ((2, 0, 1), (1, 2, 0)):
        optimizers = [torch.optim.SGD(wrappers[place].parameters()) for place in order]
        found = [way.models[0] for way in find_ways(optimizers)]
        assert found[:3] == [wrappers[place] for place in order]


@pytest.mark.parametrize(("dtype", "length"), [(torch.float32, 10), (torch.float64, 10)])
def test_messages_alone_have_the_precision_of_the_gradients(monkeypatch, dtype, length):
    wrapper = DistributedDataParallel(nn.Linear(4, 2, dtype=dtype))
    sent = []
    monkeypatch.setattr(dist, "all_reduce", lambda zeros, **_: sent.append(zeros))
    Ddp(wrapper).start_messages()
    assert [(zeros.dtype, zeros.numel()) for zeros in sent] == [(dtype, length)]


def test_a_script_without_all_reduces_of_gradients_is_refused():
    model = nn.Linear(3, 1)
    way = ByHand([torch.optim.SGD(model.parameters())], [model])
    with way.measuring():
        way.begin_learning()
        model(torch.ones(1, 3)).sum().backward()
        dist.all_reduce(torch.ones(1))
        way.end_learning()
    assert "no all_reduce of its gradients" in way.obstacle


@pytest.mark.parametrize(
    ("kind", "arm"), [(FSDPModule, "fsdp"), (ZeroRedundancyOptimizer, "zero")], ids=["fsdp", "zero"]
)
def test_what_cannot_be_switched_is_named_with_the_arm_that_answers(kind, arm):
    assert find_unswitchable() == []
    thing = object.__new__(kind)
    (found,) = find_unswitchable()
    assert (found.name, found.arm) == (kind.__name__, arm)
    del thing


def test_moving_averages_of_a_model_are_found():
    model = nn.Sequential(nn.Linear(4, 2))
    average = torch.optim.swa_utils.AveragedModel(model)
    other = nn.Sequential(nn.Linear(4, 3))
    modules = [*model.modules(), *average.modules(), *other.modules()]
    found = copies_of([model], modules)
    assert average in found
    assert not {id(module) for module in found} & {id(part) for part in (*model.modules(), other)}


def test_ranks_exchange_values_and_see_that_one_has_left():
    ranks = StoreRanks(None)
    assert ranks.exchange({"step": 3}) == [{"step": 3}]
    ranks.leave("Rank 1 failed.")
    with pytest.raises(DisagreementError, match="Rank 1 failed"):
        ranks._wait(["never set"])
    with pytest.raises(DisagreementError, match="Rank 1 failed"):
        ranks.exchange({"step": 4})


def test_reads_and_evaluations_are_noticed_and_training_is_not(tmp_path):
    model, seen = nn.Linear(2, 2), []
    optimizer = torch.optim.SGD(model.parameters())
    with noticing_reads(seen.append):
        model.train()
        model(torch.zeros(1, 2))
        assert seen == []
        model.eval()
        model.state_dict()
        optimizer.state_dict()
        torch.save([], tmp_path / "file")
    assert len(seen) == 4
    model.eval()
    assert len(seen) == 4
    assert "compare" not in sys.modules[nn.Module.train.__module__].__name__

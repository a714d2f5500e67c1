"""Buckets of the averaging strategies, and what a library refuses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from backends.base import BackendError
from backends.groups.torch_group import TorchGroup
from backends.strategies.averaging import AveragingReplica
from backends.strategies.models import contiguous, start_from_first_rank
from backends.strategies.reducers import Bucket, FlatReducer, OverlapReducer, by_dtype, gradients_of


def parameters(*dtypes):
    return [nn.Parameter(torch.zeros(3, dtype=dtype)) for dtype in dtypes]


def test_parameters_of_several_dtypes_have_a_bucket_for_each():
    mixed = parameters(torch.float32, torch.float64, torch.float32)
    assert [len(group) for group in by_dtype(mixed)] == [2, 1]
    assert FlatReducer(mixed, None, {}).message_bytes() == [24, 24]
    assert OverlapReducer(mixed, None, {"bucket_mb": 1.0}).message_bytes() == [12, 24, 12]


class SumOfOne:
    """A group of one rank, which notes what it sends."""

    rank, world_size = 0, 1

    def __init__(self):
        self.sent = []

    def all_reduce_start_(self, tensor):
        self.sent.append(tensor)
        return lambda: None


def in_segments(layer, inputs, times):
    """Call a layer through so many re-entrant checkpoints."""
    for _ in range(times):
        inputs = checkpoint(layer, inputs, use_reentrant=True)
    return inputs.sum()


def test_overlap_sums_gradients_that_arrive_several_times():
    model, group = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), SumOfOne()
    first, layer = model
    reducer = OverlapReducer(list(model.parameters()), group, {"bucket_mb": 1e-5})
    for _ in range(3):
        in_segments(layer, first(torch.ones(2, 3)), times=2).backward()
        in_backward = len(group.sent)
        reducer.reduce()
        assert len(group.sent) == len(reducer.buckets)
        summed = [p.grad.clone() for p in model.parameters()]
        group.sent.clear()
        model.zero_grad()
    assert in_backward == len(reducer.buckets), "the first step alone sends at its end"
    layer(layer(first(torch.ones(2, 3)))).sum().backward()
    plain = [p.grad for p in model.parameters()]
    assert all(torch.allclose(one, other) for one, other in zip(summed, plain, strict=True))


def test_overlap_trains_layers_in_another_order_than_registered():
    model, group = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), SumOfOne()
    last, first = model
    reducer = OverlapReducer(list(model.parameters()), group, {"bucket_mb": 1e-5})
    for sent_in_backward in (0, len(reducer.buckets)):
        last(first(torch.ones(2, 3))).sum().backward()
        assert len(group.sent) == sent_in_backward
        reducer.reduce()
        assert len(group.sent) == len(reducer.buckets)
        group.sent.clear()
        model.zero_grad()


@pytest.mark.parametrize(("times", "says"), [(2, "more gradients"), (1, "fewer gradients")])
def test_overlap_refuses_a_step_of_other_parts_than_the_first(times, says):
    layer, group = nn.Linear(3, 3), SumOfOne()
    reducer = OverlapReducer(list(layer.parameters()), group, {"bucket_mb": 1.0})
    start = torch.ones(2, 3, requires_grad=True)
    in_segments(layer, start, times=3 - times).backward()
    reducer.reduce()

    def step():
        in_segments(layer, start, times=times).backward()
        reducer.reduce()

    with pytest.raises(BackendError, match=f"{says} arrived than in the first step"):
        step()


@pytest.mark.parametrize(
    "held", [torch.ones(4, 6).t(), torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)]
)
def test_tensors_of_other_strides_travel_as_copies(held):
    with contiguous([held]) as (sent,):
        assert sent.is_contiguous()
        sent.mul_(3)
    assert held.unique().tolist() == [3.0]
    plain, sparse = torch.ones(2), torch.ones(2).to_sparse()
    with contiguous([plain, sparse]) as sent:
        assert sent[0] is plain
        assert sent[1] is sparse


def test_subclass_without_a_mode_brings_its_own_reducer(group):
    class InOneCall(AveragingReplica):
        def make_reducer(self, parameters, group, options):
            return FlatReducer(parameters, group, options)

    replica = InOneCall(nn.Linear(3, 2), lambda p: torch.optim.SGD(p, lr=0.1), group, {})
    replica.learn(torch.ones(1, 3), lambda model, batch: model(batch).sum())
    replica.sync()
    assert replica.model.bias.grad.tolist() == [1.0, 1.0]
    assert replica.collectives().message_bytes == (32,)
    assert "mode" not in replica.attest()
    assert InOneCall.unsupported_with({}) == {"sparse", "unreached"}


def test_bucket_is_padded_to_a_multiple():
    bucket = Bucket(parameters(torch.float32, torch.float32), multiple=4)
    assert (len(bucket.flat), len(bucket.padded)) == (6, 8)
    for parameter in bucket.parameters:
        parameter.grad = torch.ones(3)
    bucket.collect()
    assert bucket.padded.tolist() == [1.0] * 6 + [0.0] * 2


def test_dtype_that_a_library_cannot_add_up_is_named():
    group = SimpleNamespace(name="mpi", unsupported_dtypes={"torch.bfloat16"}, rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.bfloat16))
    with pytest.raises(BackendError, match=r"mpi cannot add up torch\.bfloat16, the dtype of 1\.weight"):
        AveragingReplica(model, None, group, {"mode": "flat"})
    assert "torch.bfloat16" not in TorchGroup.unsupported_dtypes


def test_complex_parameters_are_refused_by_name():
    group = SimpleNamespace(name="horovod", unsupported_dtypes={"torch.complex64"}, rank=0, world_size=1)
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(BackendError, match=r"complex parameters: weight is torch\.complex64"):
        AveragingReplica(model, None, group, {"mode": "flat"})


def test_start_overwrites_the_model_itself_and_sends_no_bool():
    model, sent = nn.Linear(2, 2), []
    model.register_buffer("mask", torch.tensor([True, False]))

    def broadcast_(tensor):
        sent.append(tensor.dtype)
        tensor.zero_()

    start_from_first_rank(model, SimpleNamespace(broadcast_=broadcast_))
    assert not model.mask.any()
    assert not model.weight.any()
    assert set(sent) == {torch.float32, torch.uint8}


def test_parameter_without_a_gradient_is_named_by_its_shape():
    trained = parameters(torch.float32, torch.float32)
    trained[0].grad = torch.ones(3)
    with pytest.raises(BackendError, match=r"A parameter of shape \(3,\) received no gradient"):
        gradients_of(trained)

"""Buckets of the averaging strategies, and what a library refuses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from backends.base import BackendError
from backends.groups.torch_group import TorchGroup
from backends.strategies.averaging import AveragingReplica, Bucket, FlatReducer, OverlapReducer, by_dtype
from backends.strategies.local import start_of


def parameters(*dtypes):
    return [nn.Parameter(torch.zeros(3, dtype=dtype)) for dtype in dtypes]


def test_parameters_of_several_dtypes_have_a_bucket_for_each():
    mixed = parameters(torch.float32, torch.float64, torch.float32)
    assert [len(group) for group in by_dtype(mixed)] == [2, 1]
    assert FlatReducer(mixed, None, {}).message_bytes() == [24, 24]
    assert OverlapReducer(mixed, None, {"bucket_mb": 1.0}).message_bytes() == [12, 24, 12]


def test_bucket_is_padded_to_a_multiple():
    bucket = Bucket(parameters(torch.float32, torch.float32), multiple=4)
    assert (len(bucket.flat), len(bucket.padded)) == (6, 8)
    for parameter in bucket.parameters:
        parameter.grad = torch.ones(3)
    bucket.collect()
    assert bucket.padded.tolist() == [1.0] * 6 + [0.0] * 2


def test_dtype_that_a_library_cannot_add_up_is_named():
    group = SimpleNamespace(name="mpi", refuses={"torch.bfloat16"}, rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.bfloat16))
    with pytest.raises(BackendError, match=r"mpi cannot add up torch\.bfloat16, the dtype of 1\.weight"):
        AveragingReplica(model, None, group, {"mode": "flat"})
    assert "torch.bfloat16" not in TorchGroup.refuses


def test_start_of_a_model_is_shared_and_holds_no_bool():
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.tensor([True, False]))
    start = start_of(model)
    start["mask"].zero_()
    assert not model.mask.any()
    assert {held.dtype for held in start.values()} == {torch.float32, torch.uint8}

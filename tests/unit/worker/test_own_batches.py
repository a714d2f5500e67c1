"""A batch of any kind is moved, and its samples are counted."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from compare.worker.own import move, place_of_samples, shapes_of, tensors_of

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Frozen:
    rows: torch.Tensor
    names: tuple[str, ...] = ("a",)
    later: torch.Tensor = field(init=False, default_factory=lambda: torch.ones(1))


@dataclass(slots=True)
class Slotted:
    rows: torch.Tensor


class Pair(NamedTuple):
    rows: torch.Tensor
    names: list[str]


class Attributes:
    def __init__(self, rows):
        self.rows = rows
        self.itself = self


ROWS = torch.ones(2, 3)
BATCHES = {
    "a tensor": ROWS,
    "a tuple": (ROWS, "x", None),
    "a list": [[ROWS]],
    "a named tuple": Pair(ROWS, ["x"]),
    "a dictionary": {"rows": ROWS},
    "an ordered one": OrderedDict(rows=ROWS),
    "a default one": defaultdict(list, rows=ROWS),
    "a user's one": UserDict(rows=ROWS),
    "a read-only one": MappingProxyType({"rows": ROWS}),
    "a frozen data class": Frozen(ROWS),
    "a data class with slots": Slotted(ROWS),
    "a namespace": SimpleNamespace(rows=ROWS),
    "an object that holds itself": Attributes(ROWS),
    "a packed sequence": pack_sequence([ROWS[0], ROWS[1][:2]], enforce_sorted=False),
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_move_changes_the_floats_in_a_batch_of_any_kind(batch):
    moved = move(batch, CPU, torch.float64)
    assert type(moved) is type(batch)
    floats = [tensor for tensor in tensors_of(moved) if tensor.is_floating_point()]
    assert floats
    assert {tensor.dtype for tensor in floats} == {torch.float64}
    assert {t.dtype for t in tensors_of(batch) if t.is_floating_point()} == {torch.float32}


def test_move_keeps_what_is_no_float():
    assert move(BATCHES["a default one"], CPU, torch.float64)["none"] == []
    assert move(BATCHES["a named tuple"], CPU, torch.float64).names == ["x"]
    packed = move(BATCHES["a packed sequence"], CPU, torch.float64)
    assert packed.batch_sizes.dtype == torch.int64
    assert move(torch.ones(2, dtype=torch.complex64), CPU, torch.float64).dtype == torch.complex128
    whole, function = move((torch.ones(2, dtype=torch.int32), len), CPU, torch.float64)
    assert (whole.dtype, function) == (torch.int32, len)


@pytest.mark.parametrize(
    ("batch", "size", "place"),
    [
        ((torch.ones(4, 9), torch.ones(4)), 4, (0, 0)),
        ((torch.ones(7, 4, 9), torch.ones(4)), 4, (1, 0)),
        ((torch.ones(7, 4, 9), torch.ones(7, 4)), 4, (0, 1)),
        ((torch.ones(3, 4), torch.ones(3)), 4, None),
        ((torch.ones(3, 4), torch.ones(3, 1)), 4, None),
        (BATCHES["a packed sequence"], 2, (0, 0)),
    ],
)
def test_samples_are_counted_in_the_first_dimension_or_after_time(batch, size, place):
    assert place_of_samples(shapes_of(batch), size) == place

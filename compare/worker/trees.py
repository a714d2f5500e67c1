"""Walk through the tensors of a batch of any kind."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.nn.utils.rnn import PackedSequence

if TYPE_CHECKING:
    from backends.base import Batch

KNOWN = (
    "tensors in tuples, lists, dictionaries, data classes, other objects with attributes, or packed sequences"
)
"""What a batch may be, for people."""
_Leaf: TypeAlias = torch.Tensor | PackedSequence


def tensors_of(batch: Batch) -> Iterator[torch.Tensor]:
    """Yield all tensors of a batch."""
    for leaf in _leaves(batch):
        if isinstance(leaf, PackedSequence):
            yield from (tensor for tensor in leaf if tensor is not None)
        else:
            yield leaf


def move(batch: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """Move a batch to a device; its floats become ``dtype``.

    So do both parts of complex numbers.
    """

    def moved(leaf: _Leaf) -> Any:
        if isinstance(leaf, PackedSequence):  # its batch sizes stay on the CPU
            there = leaf.to(device=device)  # type: ignore[call-arg]  # torch hints at fewer forms
            return there._replace(data=moved(leaf.data))
        if dtype is None or not (leaf.is_floating_point() or leaf.is_complex()):
            return leaf.to(device)
        return leaf.to(device, dtype.to_complex() if leaf.is_complex() else dtype)

    return _changed(batch, moved, ())


def shapes_of(batch: Batch) -> list[tuple[int, ...]]:
    """Return the shapes of a batch's tensors, except scalars.

    A packed sequence counts by its number of sequences.
    """
    shapes = (
        (int(leaf.batch_sizes[0]),) if isinstance(leaf, PackedSequence) else tuple(leaf.shape)
        for leaf in _leaves(batch)
    )
    return [shape for shape in shapes if shape]


def place_of_samples(shapes: list[tuple[int, ...]], size: int) -> tuple[int, int] | None:
    """Return which tensor, and which of its dimensions, counts the samples.

    It is the first dimension of a tensor. Where time comes first in all of them, it is the second.
    """
    for index, shape in enumerate(shapes):
        if shape[0] == size:
            return index, 0
    second = bool(shapes) and all(shape[1:2] == (size,) for shape in shapes)
    return (0, 1) if second else None


def _leaves(batch: Batch) -> Iterator[_Leaf]:
    found: list[_Leaf] = []

    def take(leaf: _Leaf) -> _Leaf:
        found.append(leaf)
        return leaf

    _changed(batch, take, ())
    return iter(found)


def _changed(batch: Any, change: Callable[[_Leaf], Any], holders: tuple[int, ...]) -> Any:
    """Return a batch with its leaves changed.

    ``holders`` are the objects around it, by identity. An object that holds itself stays there as it is.
    """
    if isinstance(batch, (torch.Tensor, PackedSequence)) or id(batch) in holders:
        return batch if id(batch) in holders else change(batch)
    inner = (*holders, id(batch))
    if isinstance(batch, MutableMapping):  # a default dictionary keeps its factory
        copied = copy.copy(batch)
        for name, part in batch.items():
            copied[name] = _changed(part, change, inner)
        return copied
    if isinstance(batch, Mapping):
        return type(batch)({name: _changed(part, change, inner) for name, part in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, (tuple, list)):
        parts = [_changed(part, change, inner) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    names = dict.fromkeys([*getattr(batch, "__dataclass_fields__", ()), *getattr(batch, "__dict__", ())])
    is_object = names and not isinstance(batch, type) and not callable(batch)
    copied = copy.copy(batch) if is_object else batch
    for name in names if is_object else ():
        if hasattr(batch, name):
            object.__setattr__(copied, name, _changed(getattr(batch, name), change, inner))
    return copied

"""Find and change the tensors in a batch of any structure."""

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
"""What a batch may consist of, for messages."""
_Leaf: TypeAlias = torch.Tensor | PackedSequence


def tensors_of(batch: Batch) -> Iterator[torch.Tensor]:
    """Yield all tensors of a batch, including those of packed sequences."""
    for leaf in _leaves(batch):
        if isinstance(leaf, PackedSequence):
            yield from (tensor for tensor in leaf if tensor is not None)
        else:
            yield leaf


def in_dtype(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Return a tensor in a precision; tensors of whole numbers stay as they are.

    Complex numbers get that precision in both parts. None as ``dtype`` changes nothing.
    """
    if dtype is None or not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    return tensor.to(dtype.to_complex() if tensor.is_complex() else dtype)


def move(batch: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """Return a batch of the same structure on a device, with its floating-point numbers in ``dtype``.

    Complex numbers get that precision in both parts. None as ``dtype`` keeps all dtypes.
    """

    def moved(leaf: _Leaf) -> Any:
        if isinstance(leaf, PackedSequence):  # its batch sizes stay on the CPU
            there = leaf.to(device=device)  # type: ignore[call-arg]  # torch hints at fewer forms
            return there._replace(data=moved(leaf.data))
        return in_dtype(leaf.to(device), dtype)

    return _changed(batch, moved, {})


def shapes_of(batch: Batch) -> list[tuple[int, ...]]:
    """Return the shapes of a batch's tensors, except scalars.

    A packed sequence has the shape (number of sequences,).
    """
    shapes = (
        (int(leaf.batch_sizes[0]),) if isinstance(leaf, PackedSequence) else tuple(leaf.shape)
        for leaf in _leaves(batch)
    )
    return [shape for shape in shapes if shape]


def place_of_samples(shapes: list[tuple[int, ...]], size: int) -> tuple[int, int] | None:
    """Return the index of a tensor, and of its dimension, that counts the samples; None if none does.

    It is the first dimension of a tensor. If time comes first in all tensors, it is the second dimension.
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

    _changed(batch, take, {})
    return iter(found)


def _changed(batch: Any, change: Callable[[_Leaf], Any], holders: Mapping[int, Any]) -> Any:
    """Return a batch with its leaves changed.

    ``holders`` maps the id of each object around the batch to its copy, because an object may hold itself.
    """
    if id(batch) in holders:
        return holders[id(batch)]
    if isinstance(batch, (torch.Tensor, PackedSequence)):
        return change(batch)
    if isinstance(batch, (tuple, list)):
        parts = [_changed(part, change, {**holders, id(batch): batch}) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if isinstance(batch, Mapping) and not isinstance(batch, MutableMapping):
        return type(batch)({name: _changed(part, change, holders) for name, part in batch.items()})  # type: ignore[call-arg]
    return _copied(batch, change, holders)


def _copied(batch: Any, change: Callable[[_Leaf], Any], holders: Mapping[int, Any]) -> Any:
    """Return a copy of a dictionary or an object with its content changed; any other value as it is."""
    attributes = [*getattr(batch, "__dataclass_fields__", ()), *getattr(batch, "__dict__", ())]
    is_mapping = isinstance(batch, MutableMapping)
    if not is_mapping and (not attributes or isinstance(batch, type) or callable(batch)):
        return batch
    copied = copy.copy(batch)  # a default dictionary keeps its factory
    inner = {**holders, id(batch): copied}
    for name in list(batch) if is_mapping else dict.fromkeys(attributes):
        if is_mapping:
            copied[name] = _changed(batch[name], change, inner)
        elif hasattr(batch, name):
            object.__setattr__(copied, name, _changed(getattr(batch, name), change, inner))
    return copied

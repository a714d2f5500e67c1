"""Keep the state of a training, and put it back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from compare.meter.scaler import forget_infinite


class _Kept(NamedTuple):
    """A tensor that belongs to the training, and a copy of its values."""

    tensor: torch.Tensor
    copy: torch.Tensor


class State:
    """The tensors of models and optimizers, and the scales of gradient scalers.

    Learning rates, schedulers, random numbers and the order of data are not part of it: they follow the
    script's own count of steps.
    """

    def __init__(
        self, modules: Sequence[Any], optimizers: Sequence[Any], scalers: Sequence[Any] = ()
    ) -> None:
        self._modules, self._scalers = modules, scalers
        self._optimizers = list(optimizers)
        self._copies: dict[int, torch.Tensor] = {}
        self._spare: dict[int, torch.Tensor] = {}
        self._kept: list[tuple[dict, dict]] = []
        self._scales: list[dict[str, Any]] = []

    @property
    def size_bytes(self) -> int:
        """Return the memory in bytes that copies of all tensors take."""
        tensors = {id(tensor): tensor.nbytes for part in self._parts() for tensor in _tensors_of(part)}
        return sum(tensors.values())

    def keep(self) -> None:
        """Copy everything; the copies of tensors that are still there keep their memory."""
        self._spare, self._copies = self._copies, {}
        self._kept = [(part, self._keep(part)) for part in self._parts()]
        self._spare.clear()
        self._scales = [scaler.state_dict() for scaler in self._scalers]

    def put_back(self) -> None:
        """Give everything the values that it had at the last call of ``keep``."""
        with torch.no_grad():
            for part, kept in self._kept:
                _put_back(part, kept)
        for scaler, scale in zip(self._scalers, self._scales, strict=True):
            scaler.load_state_dict(scale)
            forget_infinite(scaler)

    def add(self, optimizer: Any) -> None:
        """Take in an optimizer before its first step; also within a local block."""
        self._optimizers.append(optimizer)
        if self._kept:
            self._kept += [(part, self._keep(part)) for part in _parts_of(optimizer)]

    def _parts(self) -> Iterator[dict]:
        """Yield the dictionaries whose tensors are the state."""
        for root in self._modules:
            for module in root.modules():
                yield module._parameters  # noqa: SLF001 -- the name of a buffer may get another tensor in a step
                yield module._buffers  # noqa: SLF001
        for optimizer in self._optimizers:
            yield from _parts_of(optimizer)

    def _keep(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return _Kept(value, self._copy(value))
        if isinstance(value, dict):
            return {key: self._keep(item) for key, item in value.items()}
        if type(value) in {list, tuple}:
            return type(value)(map(self._keep, value))
        return value

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        source = tensor.detach()
        key = id(tensor)
        copy = self._copies.get(key, self._spare.get(key))
        if copy is None or (copy.shape, copy.dtype, copy.device) != (
            source.shape,
            source.dtype,
            source.device,
        ):
            copy = source.clone()
        else:
            copy.copy_(source)
        self._copies[key] = copy
        return copy


def _parts_of(optimizer: Any) -> list[dict]:
    """Return an optimizer's state, and its parameters by their place in the groups."""
    groups = [group["params"] for group in optimizer.param_groups]
    return [optimizer.state, dict(enumerate(parameter for group in groups for parameter in group))]


def _put_back(value: Any, kept: Any) -> Any:
    """Return the kept value: a tensor or a dictionary is the one of that time, with its old content."""
    if isinstance(kept, _Kept):
        kept.tensor.copy_(kept.copy)
        return kept.tensor
    if isinstance(kept, dict):
        old = {key: _put_back(value.get(key) if isinstance(value, dict) else None, kept[key]) for key in kept}
        if not isinstance(value, dict):
            return old
        value.clear()
        value.update(old)
        return value
    if type(kept) in {list, tuple}:
        return type(kept)(_put_back(None, item) for item in kept)
    return kept


def _tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in dictionaries, lists and tuples within each other."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_of(item)
    elif type(value) in {list, tuple}:
        for item in value:
            yield from _tensors_of(item)

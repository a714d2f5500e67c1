"""Define what all modes of averaging by hand share: the interface ``Reducer``, and buckets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import nn

from backends.base import BackendError, Facts, Group, Options


class Reducer(ABC):
    """The interface of a mode: replace every gradient by its sum over all ranks."""

    def __init__(self, parameters: list[nn.Parameter], group: Group, options: Options) -> None:
        del options
        self.parameters = parameters
        self.group = group
        self.buckets: list[Bucket] = []

    @abstractmethod
    def reduce(self) -> None:
        """Replace this step's gradients by their sums over all ranks.

        Raises:
            BackendError: a parameter received no gradient.
        """

    def messages(self) -> list[torch.Tensor]:
        """Return one tensor for each all-reduce of a step; only its shape and dtype matter."""
        return [bucket.flat for bucket in self.buckets]

    def message_bytes(self) -> list[int]:
        """Return the size in bytes of each all-reduce of one step."""
        return [message.nbytes for message in self.messages()]

    def make_replay(self) -> Callable[[], None]:
        """Return a function that runs one step's all-reduces on separate buffers."""
        buffers = [torch.zeros_like(message) for message in self.messages()]

        def run() -> None:
            for buffer in buffers:
                self.group.all_reduce_(buffer)

        return run

    def attest(self) -> Facts:
        """Return the facts of this mode that the replica adds to its own.

        A ``transport`` among them replaces the group's.
        """
        return {}


class Bucket:
    """A persistent buffer that holds the gradients of some parameters end to end.

    Collecting them costs one pass over memory. Nothing is copied back, because the parameters use the
    buffer's views as their gradients until the step drops them. ``padded`` is the whole buffer, whose length
    is divisible by ``multiple``; ``flat`` is its part with gradients.
    """

    def __init__(self, parameters: list[nn.Parameter], *, multiple: int = 1) -> None:
        self.parameters = parameters
        self.arrived, self.expected = 0, 0
        first = parameters[0]
        lengths = [p.numel() for p in parameters]
        length = sum(lengths)
        padded = -(-length // multiple) * multiple
        self.padded = torch.zeros(padded, dtype=first.dtype, device=first.device)
        self.flat = self.padded[:length]
        pieces = self.flat.split(lengths)
        self.views = [piece.view_as(p) for piece, p in zip(pieces, parameters, strict=True)]

    def collect(self) -> None:
        """Copy the gradients into the buffer, and make its views the parameters' gradients."""
        torch._foreach_copy_(self.views, gradients_of(self.parameters))
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view


def gradients_of(parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    """Return the gradients of all parameters, not copied, in the order of the parameters.

    Raises:
        BackendError: a parameter received no gradient.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if len(gradients) < len(parameters):
        shape = next(tuple(p.shape) for p in parameters if p.grad is None)
        raise BackendError(
            f"A parameter of shape {shape} received no gradient, so it cannot be averaged. "
            "Let every parameter take part in the loss."
        )
    return gradients


def by_dtype(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Return one list of parameters per dtype; lists and parameters keep their order."""
    groups: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.dtype, []).append(parameter)
    return list(groups.values())

"""Leave out a script's own ``dist.all_reduce`` of gradients, and only that."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from compare.meter.ranks import Ranks, StoreRanks
from compare.schema.metered import Synchronised


class Call(NamedTuple):
    """One call of ``all_reduce`` in a step."""

    elements: int
    size_bytes: int
    floating: bool
    of_gradient: bool
    """Whether the tensor is a gradient of a parameter, or shares its memory."""
    alone: bool
    """Whether no other rank is in its group, although others train, so that nothing is sent."""


class _Waited:
    """The work of an all-reduce whose wait is timed; else it is as the library's."""

    def __init__(self, work: Any, mark: Callable[[str], None]) -> None:
        self._work, self._mark = work, mark

    def wait(self, *arguments: Any, **named: Any) -> Any:
        """Wait as the library does, and mark the begin and the end."""
        self._mark("clipping")
        waited = self._work.wait(*arguments, **named)
        self._mark("waiting")
        return waited

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


class _Done:
    """The work of an all-reduce that was left out."""

    def wait(self, *_: Any, **__: Any) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Return that there is nothing to wait for."""
        return True


def gradient_calls(calls: Sequence[Call], gradient_elements: int) -> set[int]:
    """Return which calls of a step average gradients, by their places in it.

    They are the calls on gradients themselves, and the first on a flat buffer with as many elements as all
    gradients. Without such calls, they are those on flat buffers that have so many elements together. A call
    on one number, such as a metric, is never one of them, and neither is a call in a group of one rank.
    """
    sent = [place for place, call in enumerate(calls) if not call.alone]
    direct = {place for place in sent if calls[place].of_gradient}
    flat = {place for place in sent if calls[place].floating and calls[place].elements > 1} - direct
    whole = {place for place in flat if calls[place].elements == gradient_elements}
    if direct or whole:
        return direct | {*sorted(whole)[:1]}
    return flat if sum(calls[place].elements for place in flat) == gradient_elements else set()


def _replace_everywhere(old: Any, new: Any) -> None:
    """Give a function's names in all modules to another function."""
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is old:
                setattr(module, name, new)


class ByHand:
    """The calls of ``all_reduce`` in a script's steps."""

    def __init__(self, optimizers: Sequence[Any], models: Sequence[Any]) -> None:
        self._optimizers, self._models = list(optimizers), list(models)
        self._original = dist.all_reduce
        self._calls: list[Call] = []
        self._place = 0
        self._learning = False
        self._skipped: set[int] = set()
        self._on = True
        self._mark: Callable[[str], None] | None = None

    @property
    def models(self) -> list[Any]:
        """Return the modules that hold the optimizers' parameters."""
        return self._models

    @property
    def obstacle(self) -> str:
        """Return why gradients cannot be left out; empty if they can."""
        return "" if self._skipped else "no all_reduce of its gradients was seen in a step"

    def step_ended(self) -> None:
        """Begin to count the calls of the next step."""
        self._place = 0

    def begin_learning(self) -> None:
        """Write down the calls of the next step."""
        self._learning, self._place = True, 0

    def end_learning(self) -> None:
        """Decide which of the calls of this step average gradients."""
        self._learning, self._place = False, 0
        self._skipped = gradient_calls(self._calls, sum(gradient.numel() for gradient in self._gradients()))

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Stand before ``all_reduce``, under each name that a module of the script has for it."""
        original = self._original

        @functools.wraps(original)
        def all_reduce(tensor: Any, *arguments: Any, **named: Any) -> Any:
            place, self._place = self._place, self._place + 1
            if self._learning:
                group = named.get("group", arguments[1] if len(arguments) > 1 else None)
                # The size of a group is -1 on ranks that are not in it.
                alone = dist.get_world_size(group) < min(2, dist.get_world_size())
                self._calls.append(self._call_of(tensor, alone=alone))
            elif place in self._skipped and tensor.numel() == self._calls[place].elements:
                asynchronous = named.get("async_op", arguments[2] if len(arguments) > 2 else False)  # noqa: PLR2004
                if not self._on:
                    return _Done() if asynchronous else None
                if self._mark:
                    self._mark("clipping")
                    work = original(tensor, *arguments, **named)
                    self._mark("waiting")
                    return _Waited(work, self._mark) if asynchronous else work
            return original(tensor, *arguments, **named)

        _replace_everywhere(original, all_reduce)
        try:
            yield
        finally:
            _replace_everywhere(all_reduce, original)

    def _call_of(self, tensor: Any, *, alone: bool) -> Call:
        memory = {gradient.untyped_storage().data_ptr() for gradient in self._gradients()}
        of_gradient = tensor.untyped_storage().data_ptr() in memory
        return Call(tensor.numel(), tensor.nbytes, tensor.is_floating_point(), of_gradient, alone)

    def _gradients(self) -> list[Any]:
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        found = [parameter.grad for group in groups for parameter in group["params"]]
        return [gradient for gradient in found if gradient is not None]

    def join(self, meeting: int) -> Ranks:
        """Return all ranks."""
        return StoreRanks(None, meeting)

    def describe(self) -> Synchronised:
        """Return what the script was seen to synchronise."""
        gradients = self._gradients()
        return Synchronised(
            way="by_hand",
            name="torch.distributed.all_reduce",
            model=", ".join(type(model).__name__ for model in self._models),
            tensors=len(gradients),
            gradient_bytes=sum(gradient.nbytes for gradient in gradients),
            messages=[self._calls[place].size_bytes for place in sorted(self._skipped)],
        )

    def switch(self, *, on: bool) -> None:
        """Synchronise from the next step on, or do not."""
        self._on = on

    @contextmanager
    def marking_waits(self, mark: Callable[[str], None]) -> Iterator[None]:
        """Mark the begin and the end of each all-reduce of gradients, and of each wait for one."""
        self._mark = mark
        try:
            yield
        finally:
            self._mark = None

    def start_messages(self) -> Callable[[], None]:
        """Start the all-reduces that were seen in a step, of zeros."""
        device = self._gradients()[0].device
        sizes = [self._calls[place].elements for place in sorted(self._skipped)]
        works = [self._original(torch.zeros(size, device=device), async_op=True) for size in sizes]

        def wait() -> None:
            for work in works:
                work.wait()

        return wait

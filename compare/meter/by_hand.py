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
    dtype: torch.dtype
    of_gradient: bool
    """Whether the tensor is a gradient of a parameter, or shares its memory."""
    alone: bool
    """Whether no other rank is in its group, although others train, so that nothing is sent."""
    device: torch.device = torch.device("cpu")
    group: Any = None


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
    flat = {
        place for place in sent if calls[place].dtype.is_floating_point and calls[place].elements > 1
    } - direct
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
        self._learning = False
        self._expected: list[Call] = []
        self._seen = 0
        self._on = True
        self._mark: Callable[[str], None] | None = None

    @property
    def models(self) -> list[Any]:
        """Return the modules that hold the optimizers' parameters."""
        return self._models

    @property
    def obstacle(self) -> str:
        """Return why gradients cannot be left out; empty if they can."""
        return "" if self._expected else "no all_reduce of its gradients was seen in a step"

    def step_ended(self) -> bool:
        """Return whether the step averaged its gradients by the calls that were seen while learning."""
        is_even, self._seen = self._seen == len(self._expected), 0
        return is_even

    def begin_learning(self) -> None:
        """Write down the calls of the next step."""
        self._learning = True

    def end_learning(self) -> None:
        """Decide which of the calls of this step average gradients."""
        self._learning = False
        places = gradient_calls(self._calls, sum(gradient.numel() for gradient in self._gradients()))
        self._expected = [self._calls[place] for place in sorted(places)]

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Stand before ``all_reduce``, under each name that a module of the script has for it."""
        original = self._original

        @functools.wraps(original)
        def all_reduce(tensor: Any, *arguments: Any, **named: Any) -> Any:
            if self._learning:
                self._calls.append(
                    self._call_of(tensor, named.get("group", arguments[1] if len(arguments) > 1 else None))
                )
            elif self._is_expected(tensor):
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

    def _is_expected(self, tensor: Any) -> bool:
        """Return whether a call has the size and precision of the next one on gradients.

        Its place among all calls does not tell, because scripts average metrics in some steps alone.
        """
        expected = self._expected[self._seen : self._seen + 1]
        is_next = [(one.elements, one.dtype) for one in expected] == [(tensor.numel(), tensor.dtype)]
        self._seen += is_next
        return is_next

    def _call_of(self, tensor: Any, group: Any) -> Call:
        memory = {gradient.untyped_storage().data_ptr() for gradient in self._gradients()}
        of_gradient = tensor.untyped_storage().data_ptr() in memory
        # The size of a group is -1 on ranks that are not in it.
        alone = dist.get_world_size(group) < min(2, dist.get_world_size())
        return Call(tensor.numel(), tensor.dtype, of_gradient, alone, tensor.device, group)

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
            messages=[call.elements * call.dtype.itemsize for call in self._expected],
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
        works = [
            self._original(
                torch.zeros(call.elements, dtype=call.dtype, device=call.device),
                group=call.group,
                async_op=True,
            )
            for call in self._expected
        ]

        def wait() -> None:
            for work in works:
                work.wait()

        return wait

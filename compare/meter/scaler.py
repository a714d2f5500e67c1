"""Count the steps that a gradient scaler skips because a gradient is infinite."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from compare.meter.found import class_of, objects_of


def scalers() -> list[Any]:
    """Return the gradient scalers that are switched on."""
    kind = class_of("torch.amp.grad_scaler", "GradScaler")
    return [scaler for scaler in (objects_of(kind) if kind else ()) if scaler.is_enabled()]


@contextmanager
def counting_skipped(taken: Callable[[Any], int], skip: Callable[[Any], None]) -> Iterator[None]:
    """Call ``skip`` with the optimizer after each step that a scaler skips.

    Without synchronising one rank may skip a step that another takes, so both must count. ``taken`` returns
    how many steps an optimizer has taken.
    """
    kind: Any = class_of("torch.amp.grad_scaler", "GradScaler")
    if kind is None:
        yield
        return
    original = kind.step

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *arguments: Any, **named: Any) -> Any:
        before = taken(optimizer)
        result = original(self, optimizer, *arguments, **named)
        if taken(optimizer) == before:
            skip(optimizer)
        return result

    kind.step = step
    try:
        yield
    finally:
        kind.step = original


def forget_infinite(scaler: Any) -> None:
    """Let a scaler's next update take no infinite gradient into account, because its step was undone."""
    for state in scaler._per_optimizer_states.values():  # noqa: SLF001 -- it has no other way
        for found in state["found_inf_per_device"].values():
            found.zero_()

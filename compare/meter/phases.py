"""Read the clock within steps, by hooks that are there only during a block of the kind ``phases``."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

_MS = 1e-3


class Stopwatch:
    """Times between marks; each counts to the phase that the later mark ends."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[tuple[str, Any]] = []

    def mark(self, phase: str) -> None:
        """Write down that a phase ends now; on a GPU, when it has done what was given to it before."""
        if self._on_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((phase, event))
        else:
            self._marks.append((phase, time.perf_counter()))

    def clear(self) -> None:
        """Forget all marks."""
        self._marks.clear()

    def seconds(self, steps: int) -> dict[str, float]:
        """Return the seconds of a step in each phase, from the first mark to the last."""
        if self._on_gpu:
            torch.cuda.synchronize()
        sums: Counter[str] = Counter()
        for (_, before), (phase, now) in zip(self._marks, self._marks[1:], strict=False):
            sums[phase] += _MS * before.elapsed_time(now) if self._on_gpu else now - before
        return {phase: total / steps for phase, total in sums.items()}


@contextmanager
def reading_clock(stopwatch: Stopwatch, models: Sequence[Any]) -> Iterator[None]:
    """Mark the ends of phases in forward and backward passes of some models."""
    with ExitStack() as stack:
        for model in models:
            begin = model.register_forward_pre_hook(lambda *_: stopwatch.mark("outside"))
            end = model.register_forward_hook(lambda *_: stopwatch.mark("forward"))
            hooks = [
                parameter.register_post_accumulate_grad_hook(lambda _: stopwatch.mark("backward"))
                for parameter in model.parameters()
                if parameter.requires_grad
            ]
            for hook in (begin, end, *hooks):
                stack.callback(hook.remove)
        stack.enter_context(_marking_backward(stopwatch))
        yield


@contextmanager
def _marking_backward(stopwatch: Stopwatch) -> Iterator[None]:
    """Mark the start and the end of each backward pass."""
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*arguments: Any, **named: Any) -> None:
        stopwatch.mark("between")
        original(*arguments, **named)
        stopwatch.mark("waiting")

    torch.autograd.backward = backward  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.autograd.backward = original  # type: ignore[assignment]

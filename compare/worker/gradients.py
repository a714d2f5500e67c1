"""Time when each gradient is ready, in a block with hooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from compare.schema.results import GradientTimes
from compare.worker.blocks import Side
from compare.worker.clock import Mark, mark_time, nanoseconds_between, read_clock
from compare.worker.randomness import same_randomness

GRADIENT_STEPS = 6
"""Steps of the block; the first is not timed."""


def time_gradients(side: Side, device: torch.device, note: Callable[[int], None]) -> list[GradientTimes]:
    """Train a few steps without synchronisation, and time each gradient.

    ``note`` is called before them, with their number. The list is in the order of the parameters. One without
    a gradient is left out.
    """
    note(GRADIENT_STEPS)
    with same_randomness(device):
        steps = _hooked_steps(side, device)[1:]
    read_clock(device)
    return [
        GradientTimes(
            gradient_bytes=parameter.numel() * parameter.element_size(),
            ready_ns=[nanoseconds_between(step["forward"], step[index]) for step in steps],
        )
        for index, parameter in enumerate(side.replica.model.parameters())
        if all(index in step for step in steps)
    ]


def _hooked_steps(side: Side, device: torch.device) -> list[dict[int | str, Mark]]:
    """Return the marks of every step: its gradients, and ``forward``.

    Where passes accumulate, those of the last pass remain.
    """
    steps: list[dict[int | str, Mark]] = []
    marks: dict[int | str, Mark] = {}

    def mark(key: int | str, _: object = None) -> None:
        marks[key] = mark_time(device)

    def on_phase(phase: str) -> None:
        if phase == "forward":
            mark(phase)
        elif phase == "step":
            steps.append(dict(marks))
            marks.clear()

    hooks = [
        parameter.register_post_accumulate_grad_hook(partial(mark, index))
        for index, parameter in enumerate(side.replica.model.parameters())
        if parameter.requires_grad
    ]
    try:
        side.train(GRADIENT_STEPS, on_phase)
    finally:
        for hook in hooks:
            hook.remove()
    return steps

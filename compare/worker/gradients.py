"""Measure when each gradient of a step is ready, by hooks in a block of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from compare.schema.results import GradientTimes
from compare.worker.blocks import Side
from compare.worker.clock import Mark, mark_time, nanoseconds_between, read_clock
from compare.worker.randomness import same_randomness

GRADIENT_STEPS = 6
"""Steps of the block; the first one is not timed."""


def time_gradients(side: Side, device: torch.device, note: Callable[[int], None]) -> list[GradientTimes]:
    """Train a few steps of the reference, and return when each gradient is ready in each step.

    Times are nanoseconds after the last forward pass. The list is in the order of the model's parameters, and
    leaves out those that lack a gradient in any step. ``note`` is called once, with the number of steps.
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
    """Return for each step the mark of every gradient, by the parameter's index, and that of ``forward``.

    If a step has several passes, the last pass overwrites the marks of the earlier ones.
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

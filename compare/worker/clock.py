"""Time work and the phases of a step.

The clock is read only when the device is idle, or by the device itself. A workload may replace the functions
of ``time``. So this module, and others that measure, bind them at the start of a rank.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns, process_time_ns
from typing import NamedTuple, TypeAlias, cast

import torch

Mark: TypeAlias = "int | torch.cuda.Event"
"""A moment: nanoseconds, or what a GPU recorded."""


def read_clock(device: torch.device) -> int:
    """Return nanoseconds on a monotonic clock, after the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter_ns()


class Timing(NamedTuple):
    """The time of a piece of work."""

    wall_ns: int
    cpu_ns: int
    """CPU time of this process, all its threads together."""


def time_together(work: Callable[[], None], barrier: Callable[[], None], device: torch.device) -> Timing:
    """Time work that the ranks begin together, without the barrier."""
    barrier()
    return time_work(work, device)


def time_work(work: Callable[[], None], device: torch.device) -> Timing:
    """Time a piece of work, until the device is idle."""
    began, began_cpu = read_clock(device), process_time_ns()
    work()
    return Timing(read_clock(device) - began, process_time_ns() - began_cpu)


class PhaseClock:
    """Times the phases of steps.

    ``train`` calls it at the end of each phase. On CUDA the device records the time itself, so the host does
    not wait for it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[str, Mark]] = []

    def __call__(self, phase: str) -> None:
        """Record the end of a phase; the first call starts the clock."""
        self._marks.append((phase, mark_time(self._device)))

    def read(self) -> dict[str, list[int]]:
        """Return the nanoseconds of every phase in every step.

        A phase that occurs more than once in a step is added up.
        """
        read_clock(self._device)
        steps: list[dict[str, int]] = []
        current: dict[str, int] = {}
        for (_, before), (phase, after) in zip(self._marks, self._marks[1:], strict=False):
            current[phase] = current.get(phase, 0) + nanoseconds_between(before, after)
            if phase == "step":
                steps.append(current)
                current = {}
        return {phase: [step[phase] for step in steps] for phase in (steps[0] if steps else {})}


def mark_time(device: torch.device) -> Mark:
    """Mark this moment, in the device's own order of work."""
    if device.type != "cuda":
        return perf_counter_ns()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def nanoseconds_between(before: Mark, after: Mark) -> int:
    """Return the time between two moments of one device."""
    if isinstance(before, int):
        return cast("int", after) - before
    return round(before.elapsed_time(cast("torch.cuda.Event", after)) * 1e6)

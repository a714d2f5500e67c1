"""Time the start-up of a rank, work, and the phases of a step.

The clock is read only when the device is idle, or by the device itself. A workload may replace functions of
``time``, so every module that measures a training imports them before the user's file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, perf_counter_ns, process_time_ns, time
from typing import NamedTuple, TypeAlias, cast

import torch

from compare.schema.results import Moments

Mark: TypeAlias = "int | torch.cuda.Event"
"""A moment: nanoseconds of ``perf_counter_ns``, or an event that a GPU records."""


def read_clock(device: torch.device) -> int:
    """Wait until the device is idle, and return the nanoseconds of a monotonic clock."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter_ns()


class Timing(NamedTuple):
    """Wall time and CPU time of a piece of work."""

    wall_ns: int
    cpu_ns: int
    """CPU time of this process, all its threads together."""


def time_work(work: Callable[[], None], device: torch.device) -> Timing:
    """Time work from an idle device until the device is idle again."""
    began, began_cpu = read_clock(device), process_time_ns()
    work()
    return Timing(read_clock(device) - began, process_time_ns() - began_cpu)


class PhaseClock:
    """A clock that ``train`` calls at the end of each phase of a step.

    On CUDA the device records each moment itself, so the host does not wait for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[str, Mark]] = []

    def __call__(self, phase: str) -> None:
        """Record the end of a phase; the first call only starts the clock."""
        self._marks.append((phase, mark_time(self._device)))

    def read(self) -> dict[str, list[int]]:
        """Return for each phase, by name, a list with its nanoseconds in every step.

        A phase that occurs several times in a step is summed. Empty before a step has ended.
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
    """Return this moment; on CUDA, the moment at which the device has done the work queued so far."""
    if device.type != "cuda":
        return perf_counter_ns()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def nanoseconds_between(before: Mark, after: Mark) -> int:
    """Return the nanoseconds between two moments that the device has passed."""
    if isinstance(before, int):
        return cast("int", after) - before
    return round(before.elapsed_time(cast("torch.cuda.Event", after)) * 1e6)


class StartUp:
    """The seconds from the start of a launch to each stage of a rank, up to its first step."""

    def __init__(self, launched_at: float) -> None:
        # The clocks of two processes are compared only here, because a clock may be set at any time.
        self._origin = monotonic() - (time() - launched_at)
        self._seconds: dict[str, float] = {}
        self.mark("started")

    def mark(self, moment: str) -> None:
        """Record the time of a moment, which is the name of a field of ``Moments``."""
        self._seconds[moment] = monotonic() - self._origin

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Subtract the time of this block from all later moments."""
        begun = monotonic()
        yield
        self._origin += monotonic() - begun

    def read(self) -> Moments:
        """Return all moments; each must have been recorded."""
        return Moments(**self._seconds)

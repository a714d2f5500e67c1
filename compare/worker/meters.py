"""Measure a rank's time, the load of its CPUs, and its memory on the host and the GPU.

The clock is read only when the device is idle, or by the device itself. A workload may replace functions of
``time``, so every module that measures a training imports them before the user's file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from operator import add, sub
from pathlib import Path
from time import monotonic, perf_counter_ns, process_time_ns, time
from typing import TypeAlias, cast

import torch

from compare.schema.results import MachineUse, Moments
from compare.schema.turns import Memory
from compare.system.load import Counts, read_counts

Mark: TypeAlias = "int | torch.cuda.Event"
"""A moment: nanoseconds of ``perf_counter_ns`` on a CPU, or an event that a GPU records."""


# ---- time ----


def read_clock(device: torch.device) -> int:
    """Wait until the device is idle, and return the time of a monotonic clock in nanoseconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter_ns()


def time_work(work: Callable[[], None], device: torch.device) -> tuple[int, int]:
    """Call ``work`` on an idle device, and time it until the device is idle again.

    Returns:
        The nanoseconds that passed, and those of CPU time that all threads of this process took together.
    """
    began, began_cpu = read_clock(device), process_time_ns()
    work()
    return read_clock(device) - began, process_time_ns() - began_cpu


class PhaseClock:
    """A clock to pass to ``train`` as ``on_phase``, which times each phase of every step.

    On CUDA the device records each moment itself, so the host does not wait for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[str, Mark]] = []

    def __call__(self, phase: str) -> None:
        """Record that the phase of this name ends; the first call only starts the clock."""
        self._marks.append((phase, mark_time(self._device)))

    def read(self) -> dict[str, list[int]]:
        """Return for each phase, by name, a list with its nanoseconds in every step.

        A phase that occurs several times in a step is summed. The result is empty before a step has ended.
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
    """Return this moment on a CPU; on CUDA, the moment when the device has done all work queued so far."""
    if device.type != "cuda":
        return perf_counter_ns()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def nanoseconds_between(before: Mark, after: Mark) -> int:
    """Return the nanoseconds between two moments, which the device must have passed."""
    if isinstance(before, int):
        return cast("int", after) - before
    return round(before.elapsed_time(cast("torch.cuda.Event", after)) * 1e6)


class StartUp:
    """The seconds from the start of a launch until a rank reaches each stage, up to its first step.

    ``launched_at`` is the Unix time at which the parent started the launcher.
    """

    def __init__(self, launched_at: float) -> None:
        # The clocks of two processes are compared only here, because a clock may be set at any time.
        self._origin = monotonic() - (time() - launched_at)
        self._seconds: dict[str, float] = {}
        self.mark("started")

    def mark(self, stage: str) -> None:
        """Record that the rank reaches a stage now; ``stage`` is the name of a field of ``Moments``."""
        self._seconds[stage] = monotonic() - self._origin

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Subtract the time that the block takes from all stages that are marked later."""
        begun = monotonic()
        yield
        self._origin += monotonic() - begun

    def read(self) -> Moments:
        """Return the seconds until each stage; all stages must have been marked."""
        return Moments(**self._seconds)


# ---- the load of CPUs ----


class CPUMeter:
    """A meter of the load on the CPUs that this process may use, since the meter was made."""

    def __init__(self) -> None:
        self._cpus = os.sched_getaffinity(0)
        self._left_out = Counts()
        self._begun = read_counts(self._cpus)

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Leave the time and the load of the block out of all readings after it."""
        begun = read_counts(self._cpus)
        yield
        self._left_out = Counts(*map(add, self._left_out, map(sub, read_counts(self._cpus), begun)))

    def read(self) -> tuple[MachineUse, int]:
        """Return the load of the CPUs, and this process's CPU nanoseconds, since the meter was made."""
        counts = Counts(*map(sub, map(sub, read_counts(self._cpus), self._begun), self._left_out))
        use = MachineUse(
            wall_ns=counts.wall,
            cpus=len(self._cpus),
            busy_ns=counts.busy(len(self._cpus)),
            stolen_ns=max(0, counts.stolen),
            processes_ns=max(0, counts.sampled - counts.interrupts),
            boot_id=boot_id(),
        )
        return use, counts.own


def boot_id() -> str:
    """Return the kernel's boot ID, which is new at each boot; empty if it cannot be read."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


# ---- memory ----


def read_memory(device: torch.device, earlier: Memory | None = None) -> Memory:
    """Return the peaks of memory so far, and the free memory of the GPU, in bytes.

    A peak is at least that of ``earlier``, because the peaks may have been reset after that reading.
    """
    host, on_gpu, free = peak_memory_bytes(), 0, None
    if device.type == "cuda":
        on_gpu, free = torch.cuda.max_memory_reserved(device), torch.cuda.mem_get_info(device)[0]
    if earlier:
        host, on_gpu = max(host, earlier.peak_bytes), max(on_gpu, earlier.gpu_peak_bytes)
    return Memory(peak_bytes=host, gpu_peak_bytes=on_gpu, gpu_left_bytes=free)


def peak_memory_bytes() -> int:
    """Return the largest resident set of this process in bytes, since its start or the last reset.

    It is read from VmHWM, because ``ru_maxrss`` is inherited from the launcher that forked this process.
    """
    return _status_bytes("VmHWM")


def peak_address_bytes() -> int:
    """Return the largest size that the address space of this process has had, in bytes."""
    return _status_bytes("VmPeak")


def _status_bytes(name: str) -> int:
    """Return a size in bytes that the kernel tells of this process."""
    with Path("/proc/self/status").open() as status:
        line = next(line for line in status if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def peak_device_memory_bytes(device: torch.device) -> int | None:
    """Return the peak bytes of torch's tensors on a GPU since the last reset; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def reset_peak_memory(device: torch.device) -> bool:
    """Reset the memory peaks of this process, and return whether that of the host could be reset.

    The kernel resets it through ``/proc/self/clear_refs`` (see proc(5)), which some sandboxes do not offer.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True

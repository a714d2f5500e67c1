"""The clock, and what it is read around: blocks of steps, the phases of a step, a collective alone.

The clock is read only where the device has nothing left to do, or by the device itself.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import torch

from compare.schema.results import MachineUse

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

BLOCK_STEPS = 30
"""Steps in a block: long enough to swallow the clock's own cost, short enough for many blocks."""
REFERENCE_BLOCKS = 14
"""At most so many blocks of the reference: enough to cancel drift, whatever the length of the training."""
_COLLECTIVE_SAMPLES = 6
_MOST_CALLS, _BYTES_AT_ONCE = 10, 100_000_000
"""How often a step's collectives follow each other, for a sample of what they take alone."""

_SWEPT_BYTES = (1 << 10, 32 << 10, 1 << 20)
_LARGEST_SWEPT = 8 << 20
_SWEEP_SAMPLES, _SWEEP_CALLS = 3, 3
"""Few calls: the whole sweep is to take less than 0.3 s over a slow loopback."""
CALLS_REPEATED = 1 + _SWEEP_SAMPLES * _SWEEP_CALLS
"""How often ``time_repeated`` calls."""


class BlockPlan(NamedTuple):
    """A block to come."""

    mode: Literal["training", "reference"]
    steps: int
    """Those included with which it settles, which are not timed."""
    phased: bool
    """Its phases are timed, and it stays out of the headline."""


def plan_blocks(steps: int, order: random.Random, *, reference: bool, cycle: int = 1) -> list[BlockPlan]:
    """Cut ``steps`` into blocks, and put blocks of the reference between them.

    A reference block comes right before or after a training block of the same length, as ``order``
    decides: what drifts then falls on both alike. The middle pair is timed phase by phase.

    Args:
        steps: training steps in all.
        order: shuffles; seeded alike on every rank.
        reference: whether there is one.
        cycle: every block is a whole multiple of it.
    """
    sizes = split_into_blocks(steps, cycle=cycle)
    middle = len(sizes) // 2 if len(sizes) > 1 else None
    referred = _spread(len(sizes), REFERENCE_BLOCKS - 1) | {middle} if reference else set()
    plans = []
    for index, size in enumerate(sizes):
        pair = [BlockPlan("training", size, phased=index == middle)]
        if index in referred:
            pair.append(BlockPlan("reference", size, phased=index == middle))
            order.shuffle(pair)
        plans += pair
    return plans


def split_into_blocks(steps: int, block_steps: int = BLOCK_STEPS, *, cycle: int = 1) -> list[int]:
    """Cut ``steps``, a multiple of ``cycle``, into blocks of about ``block_steps``; into two at least.

    Equal blocks make the median over them fair; a short last block would be the noisiest. Blocks differ by
    one cycle at most.
    """
    cycles = steps // cycle
    count = max(min(2, cycles), min(cycles, round(steps / block_steps)))
    size, longer = divmod(cycles, count) if count else (0, 0)
    return [cycle * (size + (i < longer)) for i in range(count)]


def _spread(count: int, most: int) -> set[int | None]:
    """Choose at most ``most`` of ``count`` indices, evenly over all of them."""
    return set(range(count)) if count <= most else {i * (count - 1) // (most - 1) for i in range(most)}


def read_clock(device: torch.device) -> int:
    """Nanoseconds on a monotonic clock, after everything queued on ``device`` is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter_ns()


class Timing(NamedTuple):
    """What a piece of work took."""

    wall_ns: int
    cpu_ns: int
    """CPU time of this process meanwhile, all of its threads together."""


def time_together(work: Callable[[], None], barrier: Callable[[], None], device: torch.device) -> Timing:
    """Time what the ranks are to begin together; the barrier is outside the timed part."""
    barrier()
    return time_work(work, device)


def time_work(work: Callable[[], None], device: torch.device) -> Timing:
    """Time a piece of work, until the device is done with it."""
    begun, begun_cpu = read_clock(device), time.process_time_ns()
    work()
    return Timing(read_clock(device) - begun, time.process_time_ns() - begun_cpu)


class PhaseClock:
    """Times the phases of steps; told of the end of each as ``train`` tells it.

    On CUDA the device notes the time itself, so that nobody has to wait for it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[str, int | torch.cuda.Event]] = []

    def __call__(self, phase: str) -> None:
        """Note that a phase ends now; the first call only starts the clock."""
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((phase, event))
        else:
            self._marks.append((phase, time.perf_counter_ns()))

    def read(self) -> dict[str, list[int]]:
        """Return the nanoseconds of every phase in every step; one that came more than once is summed up."""
        read_clock(self._device)
        steps: list[dict[str, int]] = []
        current: dict[str, int] = {}
        for (_, before), (phase, after) in zip(self._marks, self._marks[1:], strict=False):
            current[phase] = current.get(phase, 0) + _between(before, after)
            if phase == "step":
                steps.append(current)
                current = {}
        return {phase: [step[phase] for step in steps] for phase in (steps[0] if steps else {})}


def _between(before: int | torch.cuda.Event, after: int | torch.cuda.Event) -> int:
    if isinstance(before, int):
        return cast("int", after) - before
    return round(before.elapsed_time(cast("torch.cuda.Event", after)) * 1e6)


def time_alone(
    work: Callable[[], None], barrier: Callable[[], None], device: torch.device, nbytes: int
) -> list[int]:
    """Time one step's collectives alone, in nanoseconds each time.

    As nccl-tests does, several follow each other between two looks at the clock: each waits for all
    ranks, so they keep in step with each other better than any barrier could put them.

    Args:
        work: runs them once.
        barrier: of all ranks.
        device: where the tensors are.
        nbytes: what one call averages; the larger, the fewer calls.
    """
    calls = calls_in_a_row(nbytes)

    def in_a_row() -> None:
        for _ in range(calls):
            work()

    in_a_row()
    read_clock(device)
    return [time_together(in_a_row, barrier, device).wall_ns // calls for _ in range(_COLLECTIVE_SAMPLES)]


def calls_in_a_row(nbytes: int) -> int:
    """Return how often ``time_alone`` calls what averages so many bytes, from one barrier to the next."""
    return max(1, min(_MOST_CALLS, _BYTES_AT_ONCE // max(1, nbytes)))


def sweep_sizes(message_bytes: list[int]) -> list[int]:
    """Choose the sizes of a sweep, in bytes: some that are the same for every arm, and a step's own.

    Settled by sizes alone, never by time: every rank must take part in the same collectives.
    """
    own = [size for size in {max(message_bytes), sum(message_bytes)} if size <= _LARGEST_SWEPT]
    return sorted({*_SWEPT_BYTES, *own})


def time_repeated(work: Callable[[], None], barrier: Callable[[], None], device: torch.device) -> list[int]:
    """Time some calls one after the other, in nanoseconds each; one goes before, untimed.

    A collective waits for all ranks, so that each call begins where the one before has put them in step.
    """

    def in_a_row() -> None:
        for _ in range(_SWEEP_CALLS):
            work()

    work()
    return [time_together(in_a_row, barrier, device).wall_ns // _SWEEP_CALLS for _ in range(_SWEEP_SAMPLES)]


class CPUMeter:
    """Measures, from its making until it is read, how busy the CPUs are that this process may use."""

    def __init__(self) -> None:
        self._cpus = {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)}
        self._begun = self._now()

    def read(self) -> tuple[MachineUse, int]:
        """Return how the machine was used, and the CPU time of this process in nanoseconds."""
        wall, busy, stolen, own = (now - then for now, then in zip(self._now(), self._begun, strict=True))
        use = MachineUse(wall_ns=wall, cpus=len(self._cpus), busy_ns=busy, stolen_ns=stolen)
        return use, own

    def _now(self) -> tuple[int, int, int, int]:
        tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        busy = stolen = 0
        for line in Path("/proc/stat").read_text().splitlines():
            name, *ticks = line.split()
            if name in self._cpus:
                user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, ticks[:8])
                busy += tick * (user + nice + system + irq + softirq + steal)
                stolen += tick * steal
        return time.perf_counter_ns(), busy, stolen, time.process_time_ns()


def peak_memory_bytes() -> int:
    """Largest resident set of this process so far.

    Taken from VmHWM: ``ru_maxrss`` is inherited from the launcher that forked this process.
    """
    with Path("/proc/self/status").open() as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def forget_peak_memory() -> bool:
    """Let ``peak_memory_bytes`` start again from what is resident now; return whether the kernel did.

    See clear_refs in proc(5); some sandboxes have no such file.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True

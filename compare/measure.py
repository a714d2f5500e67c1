"""The clock: wall time of blocks of steps, read only where the device has nothing left to do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK_STEPS = 30
"""Steps in a block: long enough to swallow the clock's own cost, short enough for many blocks."""


def split_into_blocks(steps: int, block_steps: int = BLOCK_STEPS) -> list[int]:
    """Cut ``steps`` into blocks of about ``block_steps``, as equal as can be.

    Equal blocks make the median over them fair; a short last block would be the noisiest.
    """
    count = max(1, round(steps / block_steps))
    size, longer = divmod(steps, count)
    return [size + (i < longer) for i in range(count)] if steps else []


def read_clock(device: torch.device) -> int:
    """Nanoseconds on a monotonic clock, after everything queued on ``device`` is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter_ns()


def time_block(work: Callable[[], None], barrier: Callable[[], None], device: torch.device) -> int:
    """Time one block in nanoseconds. The ranks start together; the barrier is outside the timed part."""
    barrier()
    begun = read_clock(device)
    work()
    return read_clock(device) - begun


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

"""Time collectives without training: those of a step, and the group's all-reduce over sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from backends.base import Collectives, Group, Replica
from compare.schema.results import Sweep
from compare.worker.clock import read_clock, time_together

_STEP_SAMPLES = 6
_MOST_CALLS, _BYTES_AT_ONCE = 10, 100_000_000
"""Most calls in one sample of a step's collectives, and most bytes of several calls together."""

_SWEPT_BYTES = (1 << 10, 32 << 10, 1 << 20)
_LARGEST_SWEPT = 8 << 20
_SWEEP_SAMPLES, _SWEEP_CALLS = 3, 3
"""Samples of each size, and calls in a sample: few, so that a sweep takes less than 0.3 s."""
CALLS_REPEATED = 1 + _SWEEP_SAMPLES * _SWEEP_CALLS
"""Number of calls that ``time_repeated`` makes by default, with its untimed call."""


def time_collectives(
    collectives: Collectives | None, group: Group, note: Callable[[int], None]
) -> tuple[list[int], list[int]]:
    """Time a step's collectives without training.

    ``note`` is called before the calls of each sample, with their number.

    Returns:
        The bytes of each collective, and for each sample the nanoseconds of all collectives of a step
        together. Both lists are empty if a step has none, or if they cannot run without training.
    """
    if collectives is None or not collectives.message_bytes:
        return [], []
    sizes = list(collectives.message_bytes)
    calls = calls_in_a_row(sum(sizes))

    def barrier() -> None:
        note(calls)
        group.barrier()

    note(calls)
    return sizes, time_alone(collectives.run, barrier, group.device, sum(sizes))


def sweep(
    message_bytes: list[int], replica: Replica, group: Group, note: Callable[[int], None]
) -> list[Sweep]:
    """Time the group's all-reduce at each size of ``sweep_sizes``, in nanoseconds per call.

    Empty if a step has no messages, or if the strategy has a transport of its own. Such a strategy bypasses
    its group, so the group's times would say nothing. ``note`` is called before each size, with the calls.
    """
    if not message_bytes or "transport" in replica.attest():
        return []
    dtype = next(replica.model.parameters()).dtype
    found = []
    for size in sweep_sizes(message_bytes):
        note(CALLS_REPEATED)
        tensor = torch.zeros(size // dtype.itemsize, dtype=dtype, device=group.device)
        times = time_repeated(partial(group.all_reduce_, tensor), group.barrier, group.device)
        found.append(Sweep(message_bytes=tensor.numel() * dtype.itemsize, ns=times))
    return found


def time_alone(
    work: Callable[[], None], barrier: Callable[[], None], device: torch.device, nbytes: int
) -> list[int]:
    """Return the nanoseconds of one step's collectives, in each sample.

    As in nccl-tests, a sample is the mean of several calls in a row between two reads of the clock. Each call
    waits for all ranks, and so keeps the ranks closer together than a barrier could. The more bytes a call
    averages, the fewer calls a sample has. The calls of a first sample are not timed.
    """
    calls = calls_in_a_row(nbytes)

    def in_a_row() -> None:
        for _ in range(calls):
            work()

    in_a_row()
    read_clock(device)
    return [time_together(in_a_row, barrier, device).wall_ns // calls for _ in range(_STEP_SAMPLES)]


def calls_in_a_row(nbytes: int) -> int:
    """Return how many calls of ``nbytes`` each make one sample of ``time_alone``."""
    return max(1, min(_MOST_CALLS, _BYTES_AT_ONCE // max(1, nbytes)))


def sweep_sizes(message_bytes: list[int]) -> list[int]:
    """Return the sizes of a sweep in bytes, smallest first.

    Three are the same for every arm. The step's largest message and the sum of its messages are added, unless
    they are too large. Measured times have no influence, because every rank must run the same collectives.
    """
    own = [size for size in {max(message_bytes), sum(message_bytes)} if size <= _LARGEST_SWEPT]
    return sorted({*_SWEPT_BYTES, *own})


def time_repeated(
    work: Callable[[], object],
    barrier: Callable[[], None],
    device: torch.device,
    *,
    samples: int = _SWEEP_SAMPLES,
    calls: int = _SWEEP_CALLS,
    warmup: int = 1,
) -> list[int]:
    """Return for each sample the mean nanoseconds of a call, over ``calls`` in a row.

    ``warmup`` untimed calls come first, and a barrier before each sample. A collective waits for all ranks,
    so the ranks begin the next call nearly together.
    """

    def in_a_row() -> None:
        for _ in range(calls):
            work()

    for _ in range(warmup):
        work()
    return [time_together(in_a_row, barrier, device).wall_ns // calls for _ in range(samples)]

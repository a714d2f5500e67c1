"""Time a group's all-reduce alone over sizes, and check its sums.

Calls follow each other in a row after one barrier, as in nccl-tests: each call keeps the ranks together. A
barrier before every call would err in both directions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from backends.base import BackendError, Group
from compare.schema.collectives import SizeTiming, SweepConfig
from compare.worker.collectives import time_repeated
from compare.worker.watchdog import Watchdog

_ITERATION_SECONDS = 0.005
"""Least time of an iteration, far above that of a barrier."""
_MOST_CALLS = 1 << 14
_PERIOD = 251
"""Elements after which the data repeats.

It is a prime, so that shifted parts are wrong.
"""
_VALUES = 61
"""Values are whole numbers below this.

So float32 adds up those of 200,000 ranks exactly.
"""


class _Pace:
    """The time that the next calls may take, from the last size."""

    def __init__(self) -> None:
        self._seconds, self._bytes = 0.0, 1

    def learn(self, seconds: float, nbytes: int) -> None:
        self._seconds, self._bytes = seconds, nbytes

    def expect(self, nbytes: int) -> float:
        return self._seconds * max(1.0, nbytes / self._bytes)


def time_sizes(group: Group, config: SweepConfig, watchdog: Watchdog) -> list[SizeTiming]:
    """Time every size in rising order, and check each."""
    pace, timings = _Pace(), []
    for number, nbytes in enumerate(config.sizes):

        def note(calls: int, number: int = number, nbytes: int = nbytes) -> None:
            watchdog.note("collectives", number, expected_seconds=calls * pace.expect(nbytes))

        timing = time_size(group, nbytes, config, note)
        if timing.ns:
            pace.learn(max(timing.ns) / 1e9, nbytes)
        timings.append(timing)
    return timings


def time_size(group: Group, nbytes: int, config: SweepConfig, note: Callable[[int], None]) -> SizeTiming:
    """Time one size, and check one further call.

    ``note`` is called before calls, with their number.
    """
    count = nbytes // torch.float32.itemsize
    note(1)
    try:
        tensor = torch.zeros(count, dtype=torch.float32, device=group.device)
        call = group.prepare_all_reduce(tensor)
    except BackendError as error:
        return SizeTiming(message_bytes=nbytes, refused=str(error))
    calls = _agree_on_calls(group, call, config.warmup_iterations, note)

    def barrier() -> None:
        note(calls)
        group.barrier()

    ns = time_repeated(call, barrier, group.device, samples=config.iterations, calls=calls, warmup=0)
    note(1)
    return SizeTiming(message_bytes=nbytes, calls=calls, ns=ns, wrong=_count_wrong(group, tensor, call))


def _agree_on_calls(
    group: Group, call: Callable[[], object], warmup: int, note: Callable[[int], None]
) -> int:
    """Double the calls until they last long on rank 0.

    ``warmup`` calls come first.
    """
    calls = 1
    while calls < _MOST_CALLS:
        note(warmup + calls)
        (ns,) = time_repeated(call, group.barrier, group.device, samples=1, calls=calls, warmup=warmup)
        warmup = 0
        enough = torch.tensor([ns * calls / 1e9 >= _ITERATION_SECONDS], dtype=torch.int64)
        enough = enough.to(group.device)
        group.broadcast_(enough)
        if enough.item():
            break
        calls *= 2
    return calls


def _count_wrong(group: Group, tensor: torch.Tensor, call: Callable[[], torch.Tensor]) -> int:
    """Sum data that depends on rank and index, and count wrong elements."""
    tensor.copy_(_repeated(_data_of(group.rank), tensor))
    found = call()
    right = sum((_data_of(rank) for rank in range(1, group.world_size)), start=_data_of(0))
    # Not a number is equal to nothing, so it counts as wrong.
    return int((found != _repeated(right, tensor)).sum())


def _data_of(rank: int) -> torch.Tensor:
    """Return one period of a rank's data: whole numbers."""
    index = torch.arange(_PERIOD)
    return ((index * index + 7 * index * rank + 3 * rank + 1) % _VALUES).to(torch.float32)


def _repeated(period: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    repeats = -(-like.numel() // _PERIOD)
    return period.to(like.device).repeat(repeats)[: like.numel()]

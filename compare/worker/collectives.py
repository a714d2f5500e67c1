"""Time collectives without training: those of a training step, or any of a group at several sizes.

Several calls in a row follow one barrier, as in nccl-tests, because most collectives keep the ranks together.
With a barrier before every call, the times could err in both directions.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import psutil
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from backends import base
from backends.base import Group, Replica
from backends.collectives import Buffers, Collectives
from compare.schema.collectives import ITERATION_SECONDS, NONE, Exchange, SizeTiming
from compare.schema.job import SweepJob
from compare.schema.results import Sweep
from compare.text import cut
from compare.worker.meters import time_work
from compare.worker.patterns import Pattern
from compare.worker.watchdog import Watchdog

_STEP_SAMPLES = 6
_STEP_CALLS, _BYTES_AT_ONCE = 10, 100_000_000
"""Most runs of a step's collectives in one sample, and most bytes that several runs send together."""

_SWEPT_BYTES = (1 << 10, 32 << 10, 1 << 20)
_LARGEST_SWEPT = 8 << 20
_SWEEP_SAMPLES, _SWEEP_CALLS = 3, 3
"""Samples of each size, and calls in a sample; they are few, so a sweep takes less than 0.3 s."""

_FIRST_BYTES = 1 << 20
"""Size that is timed first, without a report, if the first size of a job is larger than this."""
_MOST_CALLS = 1 << 14
_IN_PLACE = ("all_reduce", "broadcast", "reduce")
_THREAD_SECONDS = 0.1
"""Usual time until a thread of a library releases the buffers of a refused call."""
_RELEASE_SECONDS = 5.0
"""Maximum time until a library releases these buffers; half of the stall time if that is shorter."""
_REFUSALS = (base.BackendError, RuntimeError, TypeError, ValueError, LookupError)
"""Exceptions that libraries raise for a dtype or an operation that they refuse."""


def time_repeated(
    work: Callable[[], object],
    barrier: Callable[[], None],
    device: torch.device,
    *,
    samples: int,
    calls: int,
    warmup: int,
) -> list[int]:
    """Return for each sample the mean nanoseconds of a call of ``work``, over ``calls`` in a row.

    ``warmup`` untimed calls come first, and a barrier before each sample. There is none between the calls of
    a sample, because a collective keeps the ranks closer together than a barrier could.
    """

    def in_a_row() -> None:
        for _ in range(calls):
            work()

    for _ in range(warmup):
        work()
    times = []
    for _ in range(samples):
        barrier()
        times.append(time_work(in_a_row, device)[0] // calls)
    return times


# ---- beside a training ----


def time_collectives(
    collectives: Collectives | None, group: Group, note: Callable[[int], None]
) -> tuple[list[int], list[int]]:
    """Time all collectives of a training step together, without training.

    A sample runs them several times, but less often if a step sends many bytes. ``note`` is called before
    the warm-up and before each sample, with the number of runs that follow.

    Returns:
        The bytes of each collective, and for each sample the mean nanoseconds of one run of all collectives.
        Both lists are empty if a step has no collectives, or if ``collectives`` is None.
    """
    if collectives is None or not collectives.message_bytes:
        return [], []
    sizes = list(collectives.message_bytes)
    calls = max(1, min(_STEP_CALLS, _BYTES_AT_ONCE // max(1, sum(sizes))))

    def note_and_wait() -> None:
        note(calls)
        group.barrier()

    note(calls)
    times = time_repeated(
        collectives.run, note_and_wait, group.device, samples=_STEP_SAMPLES, calls=calls, warmup=calls
    )
    return sizes, times


def sweep(
    message_bytes: list[int], replica: Replica, group: Group, note: Callable[[int], None]
) -> list[Sweep]:
    """Time the group's all-reduce at several sizes, and return the results with the smallest size first.

    Three sizes are the same for every arm. The largest of ``message_bytes``, which are those of a step, and
    their sum are added, unless they are too large. Measured times do not change the sizes, because every rank
    must run the same collectives. ``note`` is called before each size, with the number of calls. The list is
    empty if a step has no messages, or if the strategy has its own transport and so bypasses the group.
    """
    if not message_bytes or "transport" in replica.attest():
        return []
    dtype = next(replica.model.parameters()).dtype
    sweeps = []
    step_sizes = [size for size in (max(message_bytes), sum(message_bytes)) if size <= _LARGEST_SWEPT]
    for size in sorted({*_SWEPT_BYTES, *step_sizes}):
        note(1 + _SWEEP_SAMPLES * _SWEEP_CALLS)
        tensor = torch.zeros(size // dtype.itemsize, dtype=dtype, device=group.device)
        reduce = partial(group.all_reduce_, tensor)
        times = time_repeated(
            reduce, group.barrier, group.device, samples=_SWEEP_SAMPLES, calls=_SWEEP_CALLS, warmup=1
        )
        sweeps.append(Sweep(message_bytes=tensor.numel() * dtype.itemsize, ns=times))
    return sweeps


# ---- in a launch of their own ----


def time_sizes(group: Group, job: SweepJob, watchdog: Watchdog) -> list[SizeTiming]:
    """Time every collective of the job at each of its sizes, and check each result.

    The watchdog allows a call more than the stall time if the time of the previous size predicts a longer
    one. So a job that begins with a large size gets a small one before it.
    """
    latest: SizeTiming | None = None
    timings = []
    first = msgspec.structs.replace(job, config=msgspec.structs.replace(job.config, iterations=1))

    def expected_seconds(nbytes: int) -> float:
        return max(latest.ns) / 1e9 * max(1.0, nbytes / latest.message_bytes) if latest else 0.0

    for number, (exchange, nbytes) in enumerate(job.config.measurements):

        def note(calls: int, number: int = number, nbytes: int = nbytes) -> None:
            watchdog.note("collectives", number, expected_seconds=calls * expected_seconds(nbytes))

        quantum = exchange.quantum(group.world_size) if nbytes else 1
        if nbytes > _FIRST_BYTES and not latest:
            timed = time_size(group, exchange, _FIRST_BYTES // quantum * quantum, first, note)
            latest = timed if timed.ns else None
        timings.append(time_size(group, exchange, nbytes, job, note))
        if timings[-1].ns and nbytes:  # a barrier carries no bytes
            latest = timings[-1]
    return timings


def time_size(
    group: Group, exchange: Exchange, nbytes: int, job: SweepJob, note: Callable[[int], None]
) -> SizeTiming:
    """Time one collective whose larger buffer has ``nbytes``, and check the result of one further call.

    ``note`` is called before calls, with their number. If the library refuses the collective, the result has
    only the library's reason. On the first rank of a host, the result has the bytes and packets of a call if
    the job names a network interface.
    """
    config = job.config
    fields: dict[str, Any] = msgspec.structs.asdict(exchange) | {"message_bytes": nbytes}
    note(1)
    prepared = _prepare(group, exchange, nbytes, min(_RELEASE_SECONDS, config.stall_seconds / 2))
    if isinstance(prepared, str):
        return SizeTiming(**fields, refused=prepared)
    buffers, call = prepared
    calls = _agree_on_calls(group, call, max(0, config.warmup_iterations - 1), note)

    def barrier() -> None:
        note(calls)
        group.barrier()

    is_counting = job.interface and group.placement.local_rank == 0
    barrier()  # so that no byte of an earlier call is still on its way
    before = _read_counters(job.interface) if is_counting else {}
    ns = time_repeated(call, barrier, group.device, samples=config.iterations, calls=calls, warmup=0)
    barrier()  # so that no byte is still on its way
    if before:
        after, timed_calls = _read_counters(job.interface), calls * config.iterations
        fields |= {name: (after[name] - count) / timed_calls for name, count in before.items()}
    note(1)
    return SizeTiming(**fields, calls=calls, ns=ns, wrong=_count_wrong(group, exchange, buffers, call))


def _read_counters(interface: str) -> dict[str, int]:
    """Return the bytes and packets of a network interface since it came up, named as in ``SizeTiming``."""
    # The kernel's own counters may start anew; psutil would add up what it saw before.
    counters = psutil.net_io_counters(pernic=True, nowrap=False)[interface]
    return {
        "sent_bytes": counters.bytes_sent,
        "received_bytes": counters.bytes_recv,
        "sent_packets": counters.packets_sent,
        "received_packets": counters.packets_recv,
    }


def _prepare(
    group: Group, exchange: Exchange, nbytes: int, release_seconds: float
) -> tuple[Buffers, Callable[[], torch.Tensor]] | str:
    """Allocate the buffers of a collective, and call it once.

    Returns:
        The buffers and a function that repeats the call; the library's reason alone if it refuses the call.

    Raises:
        BackendError: the library holds the buffers of a refused call longer than ``release_seconds``.
    """
    buffers = make_buffers(exchange, nbytes, group)
    storages = [StorageWeakRef(tensor.untyped_storage()) for tensor in (buffers.source, buffers.target)]
    call = None
    try:
        call = group.prepare(buffers)
        call()
    except _REFUSALS as error:
        refused = cut(str(error)).partition("\n")[0].strip() or type(error).__name__
        error.__traceback__ = None  # its frames hold the buffers
    else:
        return buffers, call
    del buffers, call
    if not _is_released(storages, _THREAD_SECONDS):
        gc.collect()  # the library's objects may hold each other
        if not _is_released(storages, release_seconds):
            raise base.BackendError(
                f"The library refused {exchange.collective} of {exchange.dtype}: {refused}. It still holds "
                f"the buffers after {release_seconds:g} s, so no other collective can be timed. Leave this "
                "one out of --collective, --dtype or --op."
            )
    return refused


def _is_released(storages: list[StorageWeakRef], seconds: float) -> bool:
    """Wait up to so many seconds, and return whether the library has released the buffers of a refused call.

    Until then, Gloo's barrier would raise the refusal once more.
    """
    end = time.monotonic() + seconds
    while not all(storage.expired() for storage in storages):
        if time.monotonic() > end:
            return False
        time.sleep(0)
    return True


def make_buffers(exchange: Exchange, nbytes: int, group: Group) -> Buffers:
    """Return this rank's buffers for a collective, filled with zeros; the larger one has ``nbytes``."""

    def zeros(size: int) -> torch.Tensor:
        dtype = torch.uint8 if exchange.traits.empty else getattr(torch, exchange.dtype)
        return torch.zeros(size, dtype=torch.uint8, device=group.device).view(dtype)

    name, part = exchange.collective, nbytes // group.world_size
    target = zeros(part if name == "reduce_scatter" else nbytes)
    source = target if name in _IN_PLACE else zeros(part if name == "all_gather" else nbytes)
    operation = "sum" if exchange.operation == NONE else exchange.operation
    return Buffers(name, source, target, operation)


def _agree_on_calls(
    group: Group, call: Callable[[], object], warmup: int, note: Callable[[int], None]
) -> int:
    """Return how many calls in a row take ``ITERATION_SECONDS`` on rank 0; the same on every rank.

    The number is doubled until they take so long, up to ``_MOST_CALLS``. ``warmup`` untimed calls come first.
    """
    calls = 1
    while calls < _MOST_CALLS:
        note(warmup + calls)
        (ns,) = time_repeated(call, group.barrier, group.device, samples=1, calls=calls, warmup=warmup)
        warmup = 0
        enough = torch.tensor([ns * calls / 1e9 >= ITERATION_SECONDS], dtype=torch.int64)
        enough = enough.to(group.device)
        group.broadcast_(enough)
        if enough.item():
            break
        calls *= 2
    return calls


def _count_wrong(group: Group, exchange: Exchange, buffers: Buffers, call: Callable[[], torch.Tensor]) -> int:
    """Call the collective on data whose right result is known, and count the wrong elements on this rank.

    The count is 0 where there is no result: for a barrier, and on all ranks but rank 0 of a ``reduce``.
    """
    if exchange.traits.empty:
        call()
        return 0
    pattern = Pattern(exchange, group.world_size)
    buffers.source.view(torch.uint8).copy_(pattern.data_of(group.rank, buffers.source).view(torch.uint8))
    result = call()
    if exchange.collective == "reduce" and group.rank:
        return 0  # only the root has a result
    return pattern.count_wrong(result, group.rank)

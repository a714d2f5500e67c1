"""Time collectives without training: those of a step, and a group's over sizes, whose results are checked.

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
from backends.base import Collectives, Group, Replica
from compare.schema.collectives import NONE, Exchange, SizeTiming
from compare.schema.job import SweepJob
from compare.schema.results import Sweep
from compare.text import cut
from compare.worker.meters import time_work
from compare.worker.patterns import Pattern
from compare.worker.watchdog import Watchdog

_STEP_SAMPLES = 6
_CALLS_OF_STEP, _BYTES_AT_ONCE = 10, 100_000_000
"""Most calls in one sample of a step's collectives, and most bytes of several calls together."""

_SWEPT_BYTES = (1 << 10, 32 << 10, 1 << 20)
_LARGEST_SWEPT = 8 << 20
_SWEEP_SAMPLES, _SWEEP_CALLS = 3, 3
"""Samples of each size, and calls in a sample: few, so that a sweep takes less than 0.3 s."""

_ITERATION_SECONDS = 0.005
"""Least time of an iteration, far above that of a barrier."""
_FIRST_BYTES = 1 << 20
"""Size that is timed, but not reported, before a first size that is larger."""
_MOST_CALLS = 1 << 14
_IN_PLACE = ("all_reduce", "broadcast", "reduce")
_THREAD_SECONDS = 0.1
"""Usual time until a library's thread releases a refused call."""
_RELEASE_SECONDS = 5.0
"""Maximum time until a library releases a refused call; half of the stall time if that is shorter."""
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
    """Return for each sample the mean nanoseconds of a call, over ``calls`` in a row.

    ``warmup`` untimed calls come first, and a barrier before each sample. A collective waits for all ranks,
    so it keeps the ranks closer together than a barrier could.
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
    """Time a step's collectives without training.

    A sample runs all of them several times, less often if a step sends many bytes. ``note`` is called before
    the warm-up and before each sample, with the number of runs that follow.

    Returns:
        The bytes of each collective, and for each sample the mean nanoseconds of one run of all of them. Both
        lists are empty if a step has none, or if `Replica.collectives` offers none.
    """
    if collectives is None or not collectives.message_bytes:
        return [], []
    sizes = list(collectives.message_bytes)
    calls = max(1, min(_CALLS_OF_STEP, _BYTES_AT_ONCE // max(1, sum(sizes))))

    def barrier() -> None:
        note(calls)
        group.barrier()

    note(calls)
    times = time_repeated(
        collectives.run, barrier, group.device, samples=_STEP_SAMPLES, calls=calls, warmup=calls
    )
    return sizes, times


def sweep(
    message_bytes: list[int], replica: Replica, group: Group, note: Callable[[int], None]
) -> list[Sweep]:
    """Time the group's all-reduce at some sizes, smallest first, in nanoseconds per call.

    Three sizes are the same for every arm. The step's largest message and the sum of its messages are added,
    unless they are too large. Measured times have no influence, because every rank must run the same
    collectives. The list is empty if a step has no messages, or if the strategy has a transport of its own,
    because it bypasses its group. ``note`` is called before each size, with the number of calls.
    """
    if not message_bytes or "transport" in replica.attest():
        return []
    dtype = next(replica.model.parameters()).dtype
    found = []
    own = [size for size in (max(message_bytes), sum(message_bytes)) if size <= _LARGEST_SWEPT]
    for size in sorted({*_SWEPT_BYTES, *own}):
        note(1 + _SWEEP_SAMPLES * _SWEEP_CALLS)
        tensor = torch.zeros(size // dtype.itemsize, dtype=dtype, device=group.device)
        reduce = partial(group.all_reduce_, tensor)
        times = time_repeated(
            reduce, group.barrier, group.device, samples=_SWEEP_SAMPLES, calls=_SWEEP_CALLS, warmup=1
        )
        found.append(Sweep(message_bytes=tensor.numel() * dtype.itemsize, ns=times))
    return found


# ---- in a launch of their own ----


def time_sizes(group: Group, job: SweepJob, watchdog: Watchdog) -> list[SizeTiming]:
    """Time every exchange at every size, and check the result of each.

    The watchdog allows a call more than the stall time if the previous size predicts that. So a small size
    comes before a first size that is large.
    """
    known: SizeTiming | None = None
    timings = []
    first = msgspec.structs.replace(job, config=msgspec.structs.replace(job.config, iterations=1))

    def expected_seconds(nbytes: int) -> float:
        return max(known.ns) / 1e9 * max(1.0, nbytes / known.message_bytes) if known else 0.0

    for number, (exchange, nbytes) in enumerate(job.config.measurements):

        def note(calls: int, number: int = number, nbytes: int = nbytes) -> None:
            watchdog.note("collectives", number, expected_seconds=calls * expected_seconds(nbytes))

        quantum = exchange.quantum(group.world_size) if nbytes else 1
        if nbytes > _FIRST_BYTES and not known:
            timed = time_size(group, exchange, _FIRST_BYTES // quantum * quantum, first, note)
            known = timed if timed.ns else None
        timings.append(time_size(group, exchange, nbytes, job, note))
        if timings[-1].ns and nbytes:  # a barrier carries no bytes
            known = timings[-1]
    return timings


def time_size(
    group: Group, exchange: Exchange, nbytes: int, job: SweepJob, note: Callable[[int], None]
) -> SizeTiming:
    """Time one exchange at one size, and check the result of one further call.

    ``note`` is called before calls, with their number. If the library refuses the exchange, the result has
    only the library's reason. The first rank of a host adds bytes and packets per call, if they are counted.
    """
    config = job.config
    of_all: dict[str, Any] = msgspec.structs.asdict(exchange) | {"message_bytes": nbytes}
    note(1)
    ready = _prepare(group, exchange, nbytes, min(_RELEASE_SECONDS, config.stall_seconds / 2))
    if isinstance(ready, str):
        return SizeTiming(**of_all, refused=ready)
    buffers, call = ready
    calls = _agree_on_calls(group, call, max(0, config.warmup_iterations - 1), note)

    def barrier() -> None:
        note(calls)
        group.barrier()

    counts = job.interface and group.placement.local_rank == 0
    barrier()  # so that no byte of an earlier call is still on its way
    before = _read_counters(job.interface) if counts else {}
    ns = time_repeated(call, barrier, group.device, samples=config.iterations, calls=calls, warmup=0)
    barrier()  # so that no byte is still on its way
    if before:
        after, of_calls = _read_counters(job.interface), calls * config.iterations
        of_all |= {name: (after[name] - then) / of_calls for name, then in before.items()}
    note(1)
    return SizeTiming(**of_all, calls=calls, ns=ns, wrong=_count_wrong(group, exchange, buffers, call))


def _read_counters(interface: str) -> dict[str, int]:
    """Return the bytes and packets on an interface since it came up, named as in ``SizeTiming``."""
    # The kernel's own counters may start anew; psutil would add up what it saw before.
    found = psutil.net_io_counters(pernic=True, nowrap=False)[interface]
    return {
        "sent_bytes": found.bytes_sent,
        "received_bytes": found.bytes_recv,
        "sent_packets": found.packets_sent,
        "received_packets": found.packets_recv,
    }


def _prepare(
    group: Group, exchange: Exchange, nbytes: int, release_seconds: float
) -> tuple[base.Buffers, Callable[[], torch.Tensor]] | str:
    """Allocate the buffers of an exchange, and call it once.

    Returns:
        The buffers and the call, or the library's reason to refuse it.

    Raises:
        BackendError: the library holds a refused call for longer than ``release_seconds``.
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
                f"a refused {exchange.collective} of {exchange.dtype} is still held after "
                f"{release_seconds:g} s. The library refused it: {refused}. Leave it out of --collective, "
                "--dtype or --op."
            )
    return refused


def _is_released(storages: list[StorageWeakRef], seconds: float) -> bool:
    """Return whether the library releases the buffers of a refused call in so many seconds.

    Until then, Gloo's barrier would raise the refusal once more.
    """
    end = time.monotonic() + seconds
    while not all(storage.expired() for storage in storages):
        if time.monotonic() > end:
            return False
        time.sleep(0)
    return True


def make_buffers(exchange: Exchange, nbytes: int, group: Group) -> base.Buffers:
    """Return this rank's buffers for an exchange, filled with zeros; the larger one has ``nbytes``."""

    def zeros(size: int) -> torch.Tensor:
        dtype = torch.uint8 if exchange.traits.empty else getattr(torch, exchange.dtype)
        return torch.zeros(size, dtype=torch.uint8, device=group.device).view(dtype)

    name, part = exchange.collective, nbytes // group.world_size
    target = zeros(part if name == "reduce_scatter" else nbytes)
    source = target if name in _IN_PLACE else zeros(part if name == "all_gather" else nbytes)
    operation = "sum" if exchange.operation == NONE else exchange.operation
    return base.Buffers(name, source, target, operation)


def _agree_on_calls(
    group: Group, call: Callable[[], object], warmup: int, note: Callable[[int], None]
) -> int:
    """Return how many calls make an iteration that lasts ``_ITERATION_SECONDS`` on rank 0. Collective.

    The number doubles until they do, up to ``_MOST_CALLS``. ``warmup`` untimed calls come first.
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


def _count_wrong(
    group: Group, exchange: Exchange, buffers: base.Buffers, call: Callable[[], torch.Tensor]
) -> int:
    """Exchange data whose result is known, and return how many elements of this rank's are wrong."""
    if exchange.traits.empty:
        call()
        return 0
    pattern = Pattern(exchange, group.world_size)
    buffers.source.view(torch.uint8).copy_(pattern.given(group.rank, buffers.source).view(torch.uint8))
    found = call()
    if exchange.collective == "reduce" and group.rank:
        return 0  # only the root has a result
    return pattern.count_wrong(found, group.rank)

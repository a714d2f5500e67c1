"""What one rank does in a launch: join, train, test, attest. The only caller of ``backends.load``."""

from __future__ import annotations

import math
import os
import platform
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

import backends
from backends.base import BackendError
from compare import data
from compare.schema.arms import CONTROL
from compare.schema.environment import library_settings
from compare.schema.job import PASSES
from compare.schema.results import Evaluation, Moments, RankResult, Sweep
from compare.worker.blocks import FIRST_STEPS, Side, make_reference, take_turns, untimed_steps
from compare.worker.clock import (
    CALLS_REPEATED,
    CPUMeter,
    calls_in_a_row,
    forget_peak_memory,
    peak_memory_bytes,
    read_clock,
    sweep_sizes,
    time_alone,
    time_repeated,
)
from compare.worker.loop import EVALUATION_BATCH, evaluate, train
from compare.worker.parity import Data, hash_parameters, prove
from compare.worker.workload import Batches, as_tensors, build_model, normalise, optimizer_maker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from backends.base import Collectives, Facts, Group, MakeOptimizer, Placement, Replica
    from compare.schema.job import Job, Stage
    from compare.schema.results import Block, MachineUse, ParityPass
    from compare.worker.blocks import Sides
    from compare.worker.watchdog import Watchdog

_WARM_UP_PIECE = 10


def run(job: Job, placement: Placement, watchdog: Watchdog) -> RankResult:
    """Do a rank's part of a launch.

    Raises:
        BackendError: the backend cannot do here what the arm asks of it.
        DataError: the data set is not what it should be.
        Exception: whatever the libraries raise; the caller records it.
    """
    config, start_up = job.config, _StartUp(job.launched_at)
    start_up.mark("started")
    joined = _join(job, placement, watchdog, start_up)
    group, device = joined.group, joined.group.device
    with start_up.left_out():
        earlier_peak = peak_memory_bytes()
        parity = _prove(job, joined, watchdog)
        peak_with_proof = peak_memory_bytes()
        forgotten = forget_peak_memory()

    watchdog.note("replica")
    replica = _make_replica(job, joined)
    initial_hash = hash_parameters(replica.whole())
    start_up.mark("replica_ready")

    watchdog.note("warm-up")
    batches = Batches(*joined.training_set, replica.shard, config)
    own = Side(replica, iter(batches))
    first_step_seconds = _take_first_step(own, device)
    start_up.mark("first_step_done")

    timed = _timed(job, own, joined, watchdog, first_step_seconds=first_step_seconds)
    whole = replica.whole()
    final_hash = hash_parameters(whole)

    def note(stage: Stage, steps: float) -> None:
        watchdog.note(stage, config.total_steps, expected_seconds=steps * timed.step_seconds)

    # A step's collectives take no longer than the step, of which they are a part; nor does a forward pass.
    note_collectives = partial(note, "collectives")
    message_bytes, collective_ns = _time_collectives(replica.collectives(), group, note_collectives)
    sweep = _sweep(message_bytes, replica, group, note_collectives)
    note_test = partial(note, "test", EVALUATION_BATCH / config.batch_size_per_rank)
    evaluation = _evaluate(job, whole, replica.shard, device, note_test)
    # Others may still test, and are waited for: to attest is a collective, with some.
    note("end", evaluation.samples / config.batch_size_per_rank)
    result = RankResult(
        rank=placement.rank,
        local_rank=placement.local_rank,
        host=placement.host,
        pid=os.getpid(),
        blocks=timed.blocks,
        initial_hash=initial_hash,
        final_hash=final_hash,
        evaluation=evaluation,
        peak_memory_bytes=max(earlier_peak, timed.peak_memory_bytes),
        peak_device_memory_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        gradient_bytes=sum(p.numel() * p.element_size() for p in whole.parameters()),
        gradient_tensors=sum(1 for _ in whole.parameters()),
        message_bytes=message_bytes,
        collective_ns=collective_ns,
        sweep=sweep,
        cpu_ns=timed.cpu_ns,
        machine=timed.machine if placement.local_rank == 0 else None,
        moments=start_up.read(),
        parity=parity,
        whole_peak_memory_bytes=max(peak_with_proof, peak_memory_bytes()),
        attestation=_attest(group, replica, batches)
        | {"environment": library_settings(os.environ, masked=job.exported)}
        | {"peak_memory_without_parity": forgotten},
    )
    # Connections are part of what is attested: nobody closes them while another still looks.
    group.barrier()
    group.leave()
    return result


class _StartUp:
    """When a rank came to what it does until its first step, less what only a comparison does."""

    def __init__(self, launched_at: float) -> None:
        self._origin = launched_at
        self._seconds: dict[str, float] = {}

    def mark(self, moment: str) -> None:
        """Note that a moment, named as in ``Moments``, is now."""
        self._seconds[moment] = time.time() - self._origin

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Let the moments to come stand as if what is done meanwhile had taken no time."""
        begun = time.time()
        yield
        self._origin += time.time() - begun

    def read(self) -> Moments:
        return Moments(**self._seconds)


class _Joined(NamedTuple):
    """What a rank has once it has met the others."""

    make_replica: type[Replica]
    group: Group
    training_set: Data


def _join(job: Job, placement: Placement, watchdog: Watchdog, start_up: _StartUp) -> _Joined:
    config = job.config
    watchdog.note("load")
    torch.set_num_threads(config.threads_per_rank)
    _assert_alike(job)
    device = _device(config.device, placement)
    make_group, make_replica = backends.load(job.arm.backend, job.arm.options)

    watchdog.note("data")
    images, labels = as_tensors(*data.load_split(job.dataset, "train"), device)
    if device.type == "cuda":
        images = normalise(images)  # there memory is quick, and two more kernels a step are felt
    start_up.mark("data_ready")

    watchdog.note("join")
    group = make_group.join(placement, device, job.arm.options, config.launch_timeout_seconds)
    start_up.mark("joined")

    # The first optimizer of a process loads a second's worth of torch: part of the start-up, in every arm.
    optimizer_maker(config)(iter([torch.nn.Parameter(torch.zeros(1))]))
    return _Joined(make_replica, group, Data(images, labels))


def _prove(job: Job, joined: _Joined, watchdog: Watchdog) -> list[ParityPass]:
    """Train a little beside a single process, before anything is measured; not in the control.

    An option that puts something off is set as the registry says (``while_proven``): a pass is short, and
    must see what the measured steps do.
    """
    if not job.arm.synchronises:
        return []
    group, options = joined.group, job.arm.options_while_proven

    def make(model: nn.Module, make_optimizer: MakeOptimizer) -> Replica:
        return joined.make_replica(model, make_optimizer, group, options)

    def note(step_seconds: float) -> None:
        # Rank 0 may take as many times longer as there are ranks, and the others wait for it.
        watchdog.note("parity", expected_seconds=job.config.ranks * step_seconds)

    leads = group.rank == 0
    return [
        prove(make, joined.training_set, job.config, kind, note, leads=leads, brief=job.proof == "brief")
        for kind in PASSES[job.proof]
    ]


def _make_replica(job: Job, joined: _Joined) -> Replica:
    config, group = job.config, joined.group
    torch.manual_seed(config.seed)
    model = build_model(config.model).to(group.device)
    replica = joined.make_replica(model, optimizer_maker(config), group, job.arm.options)
    replica.accumulate(config.accumulate)
    # From here on the ranks may differ in what they drop out, but not from one run to the next.
    torch.manual_seed(config.seed + 1 + group.rank)
    return replica


def _take_first_step(own: Side, device: torch.device) -> float:
    """Return how long it took, in seconds."""
    begun = time.monotonic()
    train(*own, 1)
    read_clock(device)
    return time.monotonic() - begun


def _warm_up(own: Side, steps: int, device: torch.device, watchdog: Watchdog, step_seconds: float) -> float:
    """Train up to ``steps``, the first of which is done; return about how long a step takes, in seconds.

    Args:
        own: what trains.
        steps: how many, with the first.
        device: that trains.
        watchdog: gets a record of every piece.
        step_seconds: what the first step took, which is more than any other will.
    """
    done = 1
    while done < steps:
        watchdog.note("warm-up", done, expected_seconds=step_seconds)
        piece, begun = (
            min(_WARM_UP_PIECE, watchdog.steps_at_once(step_seconds), steps - done),
            time.monotonic(),
        )
        train(*own, piece)
        read_clock(device)
        done, step_seconds = done + piece, (time.monotonic() - begun) / piece
    return step_seconds


class _Timed(NamedTuple):
    blocks: list[Block]
    step_seconds: float
    """Of the slowest block."""
    peak_memory_bytes: int
    machine: MachineUse
    cpu_ns: int


def _timed(job: Job, own: Side, joined: _Joined, watchdog: Watchdog, *, first_step_seconds: float) -> _Timed:
    """Warm up, then train the steps that count."""
    config, group = job.config, joined.group
    untimed = untimed_steps(config, own.replica.cycle)
    step_seconds = _warm_up(own, untimed, group.device, watchdog, first_step_seconds)
    peak = peak_memory_bytes()  # before there is a reference: it takes memory that this arm does not need
    sides: Sides = {"training": own}
    if job.arm.communicates:
        watchdog.note("reference", untimed, expected_seconds=step_seconds)
        _, make_control = backends.load(CONTROL, {})
        same = iter(Batches(*joined.training_set, own.replica.shard, config))
        steps = min(FIRST_STEPS, config.untimed_steps, watchdog.steps_at_once(step_seconds))
        sides["reference"] = make_reference(make_control, config, same, group, steps)
    meter = CPUMeter()
    blocks = list(take_turns(job, sides, group, watchdog, step_seconds=step_seconds))
    machine, cpu_ns = meter.read()
    slowest_ns = max(block.wall_ns / block.steps for block in blocks if block.mode == "training")
    return _Timed(blocks, slowest_ns / 1e9, peak, machine, cpu_ns)


def _time_collectives(
    collectives: Collectives | None, group: Group, note: Callable[[int], None]
) -> tuple[list[int], list[int]]:
    """Return the bytes of a step's collectives and, for each time they ran alone, the nanoseconds."""
    if collectives is None or not collectives.message_bytes:
        return [], []
    sizes = list(collectives.message_bytes)
    calls = calls_in_a_row(sum(sizes))

    def barrier() -> None:
        note(calls)
        group.barrier()

    note(calls)
    return sizes, time_alone(collectives.run, barrier, group.device, sum(sizes))


def _sweep(
    message_bytes: list[int], replica: Replica, group: Group, note: Callable[[int], None]
) -> list[Sweep]:
    """Time the group's all-reduce over sizes, where it is what averages the gradients.

    A strategy that names a transport of its own goes past its group, which then says nothing of it.
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


def _evaluate(
    job: Job, model: nn.Module, shard: tuple[int, int], device: torch.device, note: Callable[[], None]
) -> Evaluation:
    note()
    images, labels = as_tensors(*data.load_split(job.dataset, "test"), device)
    correct, samples, loss_sum = evaluate(model, normalise(images), labels, shard, note)
    return Evaluation(
        correct=correct, samples=samples, loss_sum=loss_sum if math.isfinite(loss_sum) else None
    )


def _attest(group: Group, replica: Replica, batches: Batches) -> Facts:
    device = group.device
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "torch": str(torch.__version__),
        "batch": batches.attest(),
        "parameter_dtypes": sorted({str(p.dtype) for p in replica.model.parameters()}),
        "optimizer": _attest_optimizer(replica.optimizer),
        "affinity": sorted(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "malloc": {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")},
        "group": group.attest(),
        "replica": replica.attest()
        | {"class": type(replica).__name__, "phases": list(replica.phases), "cycle": replica.cycle},
        "held": replica.held_bytes(),
    }


def _attest_optimizer(optimizer: torch.optim.Optimizer) -> Facts:
    """Say what the optimizer holds, which is what it steps by."""
    groups = [
        {name: value for name, value in held.items() if isinstance(value, (bool, int, float, tuple))}
        for held in optimizer.param_groups
    ]
    return {"class": type(optimizer).__name__, "groups": groups}


def _device(kind: str, placement: Placement) -> torch.device:
    if kind == "cpu":
        return torch.device("cpu")
    there = torch.cuda.device_count()
    if placement.local_rank >= there:
        raise BackendError(
            f"local rank {placement.local_rank} has no GPU of its own: host {placement.host} has {there}; "
            "use fewer ranks per host, or --device cpu"
        )
    device = torch.device("cuda", placement.local_rank)
    torch.cuda.set_device(device)
    return device


def _assert_alike(job: Job) -> None:
    """Refuse to be measured under another binding or thread count than the other arms."""
    expected = (job.affinity, job.config.threads_per_rank)
    found = (sorted(os.sched_getaffinity(0)), torch.get_num_threads())
    if found != expected:
        raise BackendError(
            f"this rank has CPUs {found[0]} and {found[1]} threads instead of {expected[0]} and "
            f"{expected[1]}: arms that are bound differently cannot be compared"
        )

"""What one rank does in a launch: join, train, test, attest. The only caller of ``backends.load``."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import random
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

import backends
from backends.base import BackendError
from compare import data
from compare.arms import CONTROL
from compare.launch.environment import library_settings
from compare.measure import (
    CPUMeter,
    PhaseClock,
    peak_memory_bytes,
    plan_blocks,
    read_clock,
    sweep_sizes,
    time_alone,
    time_block,
    time_repeated,
)
from compare.results import Block, Evaluation, Moments, RankResult, Sweep
from compare.train import evaluate, train
from compare.workload import Batches, as_tensors, build_model, optimizer_maker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from torch import nn

    from backends.base import Collectives, Facts, Group, Placement, Replica
    from compare.config import RunConfig
    from compare.guard import Guard
    from compare.job import Job
    from compare.measure import BlockPlan
    from compare.results import Mode
    from compare.train import Batch

_WARM_UP_PIECE = 10
_ALONE_STEPS = 100
"""A step's collectives alone, as often as they are run, take less than so many steps."""
_SLACK = 3.0
"""A block may take so many times what the warm-up promised, and the stall on top."""


def run(job: Job, placement: Placement, guard: Guard) -> RankResult:
    """Do a rank's part of a launch.

    Raises:
        BackendError: the backend cannot do here what the arm asks of it.
        DataError: the data set is not what it should be.
        Exception: whatever the libraries raise; the caller records it.
    """
    config, moments = job.config, [time.time()]
    torch.set_num_threads(config.threads_per_rank)
    _assert_alike(job)
    device = _device(config.device, placement)
    make_group, make_replica = backends.load(job.arm.backend)

    guard.note("data")
    raw = data.load(Path(job.dataset.directory))
    images, labels = as_tensors(raw.train_images, raw.train_labels, device)
    moments.append(time.time())

    guard.note("join")
    group = make_group.join(placement, device, job.arm.options, config.launch_timeout_seconds)
    moments.append(time.time())

    guard.note("replica")
    torch.manual_seed(config.seed)
    model = build_model(config.model).to(device)
    replica = make_replica(model, optimizer_maker(config), group, job.arm.options)
    initial_hash = hash_parameters(model)
    # From here on the ranks may differ in what they drop out, but not from one run to the next.
    torch.manual_seed(config.seed + 1 + placement.rank)
    moments.append(time.time())

    guard.note("warm-up")
    source = Batches(images, labels, replica.shard, config)
    batches = iter(source)
    train(replica, batches, 1)
    read_clock(device)
    moments.append(time.time())

    step_seconds = _warm_up(replica, batches, config.untimed_steps, guard)
    # Before there is a reference: it takes memory that this arm does not need.
    peak = peak_memory_bytes()
    sides: dict[Mode, Side] = {"training": Side(replica, batches)}
    if job.arm.synchronises:
        guard.note("reference", config.untimed_steps)
        own_batches = iter(Batches(images, labels, replica.shard, config))
        sides["reference"] = _reference(config, own_batches, group)
    meter = CPUMeter()
    blocks = list(_timed_blocks(job, sides, group, guard, step_seconds=step_seconds))
    machine, cpu_ns = meter.read()
    final_hash = hash_parameters(model)
    guard.note("collectives", config.total_steps, expected_seconds=_SLACK * _ALONE_STEPS * step_seconds)
    message_bytes, collective_ns = _time_collectives(replica.collectives(), group)
    sweep = _sweep(message_bytes, replica, group)

    guard.note("test", config.total_steps)
    result = RankResult(
        rank=placement.rank,
        local_rank=placement.local_rank,
        host=placement.host,
        pid=os.getpid(),
        blocks=blocks,
        initial_hash=initial_hash,
        final_hash=final_hash,
        evaluation=_evaluate(model, raw, replica.shard, device),
        peak_memory_bytes=peak,
        peak_device_memory_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        gradient_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
        gradient_tensors=sum(1 for _ in model.parameters()),
        message_bytes=message_bytes,
        collective_ns=collective_ns,
        sweep=sweep,
        cpu_ns=cpu_ns,
        machine=machine if placement.local_rank == 0 else None,
        moments=Moments(*(moment - job.launched_at for moment in moments)),
        attestation=_attest(group, replica, source, device),
    )
    guard.note("end", config.total_steps)
    # Connections are part of what is attested: nobody closes them while another still looks.
    group.barrier()
    group.leave()
    return result


def hash_parameters(model: nn.Module) -> str:
    """SHA-256 over the bytes of every parameter, in the model's order.

    Buffers do not count: running statistics are each rank's own.
    """
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def _warm_up(replica: Replica, batches: Iterator[Batch], steps: int, guard: Guard) -> float:
    """Train up to ``steps``, the first of which is done; return about how long a step takes, in seconds."""
    step_seconds = 0.0
    for done in range(1, steps, _WARM_UP_PIECE):
        guard.note("warm-up", done, expected_seconds=_SLACK * _WARM_UP_PIECE * step_seconds)
        piece, begun = min(_WARM_UP_PIECE, steps - done), time.monotonic()
        train(replica, batches, piece)
        step_seconds = (time.monotonic() - begun) / piece
    return step_seconds


class Side(NamedTuple):
    """One of the two that are measured in turns: the arm itself, and its reference."""

    replica: Replica
    batches: Iterator[Batch]


def _reference(config: RunConfig, batches: Iterator[Batch], group: Group) -> Side:
    """Make a pristine replica that trains on the same batches without any synchronisation.

    It stands beside the arm in the same process, so what the arm's library does in the background
    slows it down as well.
    """
    _, make_replica = backends.load(CONTROL)
    with _untouched_randomness(group.device):
        torch.manual_seed(config.seed)
        model = build_model(config.model).to(group.device)
        side = Side(make_replica(model, optimizer_maker(config), group, {}), batches)
        train(*side, min(_WARM_UP_PIECE, config.untimed_steps))
    return side


def _untouched_randomness(device: torch.device) -> AbstractContextManager[None]:
    """Leave the generators as they are: what the reference drops out must not change what the arm does."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def _timed_blocks(
    job: Job, sides: dict[Mode, Side], group: Group, guard: Guard, *, step_seconds: float
) -> Iterator[Block]:
    """Train the steps that count, block by block; a step is expected to take ``step_seconds``."""
    config = job.config
    done = config.untimed_steps
    order = random.Random(f"{config.seed}/{job.number}")
    for plan in plan_blocks(config.total_steps - done, order, reference="reference" in sides):
        guard.note("train", done, expected_seconds=_SLACK * plan.steps * step_seconds)
        if plan.mode == "training":
            yield _timed_block(plan, sides["training"], group)
            done += plan.steps
        else:
            with _untouched_randomness(group.device):
                yield _timed_block(plan, sides["reference"], group)


def _timed_block(plan: BlockPlan, side: Side, group: Group) -> Block:
    clock = PhaseClock(group.device)

    def phased() -> None:
        clock("begin")
        train(*side, plan.steps, clock)

    work = phased if plan.phased else partial(train, *side, plan.steps)
    timing = time_block(work, group.barrier, group.device)
    return Block(
        mode=plan.mode, steps=plan.steps, wall_ns=timing.wall_ns, cpu_ns=timing.cpu_ns, phases=clock.read()
    )


def _time_collectives(collectives: Collectives | None, group: Group) -> tuple[list[int], list[int]]:
    """Return the bytes of a step's collectives and, for each time they ran alone, the nanoseconds."""
    if collectives is None or not collectives.message_bytes:
        return [], []
    sizes = list(collectives.message_bytes)
    return sizes, time_alone(collectives.run, group.barrier, group.device, sum(sizes))


def _sweep(message_bytes: list[int], replica: Replica, group: Group) -> list[Sweep]:
    """Time the group's all-reduce over sizes, where it is what averages the gradients.

    A strategy that names a transport of its own goes past its group, which then says nothing of it.
    """
    if not message_bytes or "transport" in replica.attest():
        return []
    dtype = next(replica.model.parameters()).dtype
    found = []
    for size in sweep_sizes(message_bytes):
        tensor = torch.zeros(size // dtype.itemsize, dtype=dtype, device=group.device)
        times = time_repeated(partial(group.all_reduce_, tensor), group.barrier, group.device)
        found.append(Sweep(message_bytes=tensor.numel() * dtype.itemsize, ns=times))
    return found


def _evaluate(
    model: nn.Module, raw: data.RawDataset, shard: tuple[int, int], device: torch.device
) -> Evaluation:
    images, labels = as_tensors(raw.test_images, raw.test_labels, device)
    correct, samples, loss_sum = evaluate(model, images, labels, shard)
    return Evaluation(
        correct=correct, samples=samples, loss_sum=loss_sum if math.isfinite(loss_sum) else None
    )


def _attest(group: Group, replica: Replica, batches: Batches, device: torch.device) -> Facts:
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "torch": str(torch.__version__),
        "environment": library_settings(os.environ),
        "batch": batches.attest(),
        "parameter_dtypes": sorted({str(p.dtype) for p in replica.model.parameters()}),
        "optimizer": _attest_optimizer(replica.optimizer),
        "affinity": sorted(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "malloc": {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")},
        "group": group.attest(),
        "replica": replica.attest() | {"class": type(replica).__name__, "phases": list(replica.phases)},
    }


def _attest_optimizer(optimizer: torch.optim.Optimizer) -> Facts:
    """Say what the optimizer holds, which is what it steps by."""
    groups = [
        {name: value for name, value in held.items() if isinstance(value, (bool, int, float, tuple, list))}
        for held in optimizer.param_groups
    ]
    for held in groups:
        held.pop("params", None)
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

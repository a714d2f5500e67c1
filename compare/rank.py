"""What one rank does in a launch: join, train, test, attest. The only caller of ``backends.load``."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import backends
from backends.base import BackendError
from compare import data
from compare.measure import peak_memory_bytes, read_clock, split_into_blocks, time_block
from compare.results import Block, Evaluation, Moments, RankResult
from compare.train import evaluate, train
from compare.workload import Batches, as_tensors, build_model, optimizer_maker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from backends.base import Facts, Group, Placement, Replica
    from compare.guard import Guard
    from compare.job import Job
    from compare.train import Batch

_WARM_UP_PIECE = 10
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
    make_group, make_replica = backends.load(job.arm.backend, job.arm.options)

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
    replica.accumulate(config.accumulate)
    initial_hash = hash_parameters(model)
    # From here on the ranks may differ in what they drop out, but not from one run to the next.
    torch.manual_seed(config.seed + 1 + placement.rank)
    moments.append(time.time())

    guard.note("warm-up")
    batches = iter(Batches(images, labels, replica.shard, config))
    train(replica, batches, 1)
    read_clock(device)
    moments.append(time.time())

    step_seconds = _warm_up(replica, batches, config.untimed_steps, guard)
    timed = range(config.untimed_steps, config.total_steps)
    blocks = list(_timed_blocks(replica, batches, group, timed, guard, step_seconds=step_seconds))

    result = RankResult(
        rank=placement.rank,
        local_rank=placement.local_rank,
        host=placement.host,
        pid=os.getpid(),
        blocks=blocks,
        initial_hash=initial_hash,
        final_hash=hash_parameters(model),
        evaluation=_evaluate(model, raw, replica.shard, device),
        peak_memory_bytes=peak_memory_bytes(),
        peak_device_memory_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        gradient_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
        gradient_tensors=sum(1 for _ in model.parameters()),
        moments=Moments(*(moment - job.launched_at for moment in moments)),
        attestation=_attest(group, replica, device),
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


def _timed_blocks(
    replica: Replica,
    batches: Iterator[Batch],
    group: Group,
    steps: range,
    guard: Guard,
    *,
    step_seconds: float,
) -> Iterator[Block]:
    """Train the steps that count, block by block; a step is expected to take ``step_seconds``."""
    done = steps.start
    for count in split_into_blocks(len(steps)):
        guard.note("train", done, expected_seconds=_SLACK * count * step_seconds)
        wall_ns = time_block(partial(train, replica, batches, count), group.barrier, group.device)
        yield Block(steps=count, wall_ns=wall_ns)
        done += count
    guard.note("test", done)


def _evaluate(
    model: nn.Module, raw: data.RawDataset, shard: tuple[int, int], device: torch.device
) -> Evaluation:
    images, labels = as_tensors(raw.test_images, raw.test_labels, device)
    correct, samples, loss_sum = evaluate(model, images, labels, shard)
    return Evaluation(
        correct=correct, samples=samples, loss_sum=loss_sum if math.isfinite(loss_sum) else None
    )


def _attest(group: Group, replica: Replica, device: torch.device) -> Facts:
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "malloc": {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")},
        "group": group.attest(),
        "replica": replica.attest() | {"class": type(replica).__name__, "phases": list(replica.phases)},
    }


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

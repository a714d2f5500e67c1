"""Compare an arm with a single process on the same samples.

A new copy of the run's model trains through the arm's strategy. The reference is plain torch without a
group. In each step it trains on the batches of all ranks as one.

The passes check gradients, and plain SGD applies gradients as they are. Adam divides each by its own
size. A gradient that is zero except for rounding then moves its parameter as far as any other. After 20
float64 steps of the convnet, Adam ended 3e-12 away from the reference, and SGD 3e-16. The learning rate is
not the run's either. With a tiny one every strategy would pass, with a huge one none.

``prove`` restores the random generators and the memory, so the training after it is not changed.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import hashlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
import torch
from torch import nn

from backends.base import MakeOptimizer, Replica
from compare.schema.config import RunConfig
from compare.schema.job import STEPS
from compare.schema.results import ParityPass, PassKind
from compare.worker.batches import Batches
from compare.worker.loop import Batch, train
from compare.worker.workload import build_model, loss_function, optimizer_maker

MakeReplica = Callable[[nn.Module, MakeOptimizer], Replica]

_SAMPLES = 8
"""Samples of a step, and at least one for each rank.

A gradient of few samples shows every fault that one of many shows, and costs the reference little.
"""
_LEARNING_RATE = 0.01
_LARGE = 4_000_000
"""Parameters of a large model.

Twenty steps of 20 million parameters take about 10 s, and 40 s over a slow network.
"""
_FEW_STEPS = 5
"""Steps of a brief pass with a large model.

All known faults show by the third step. DDP rebuilds its buckets after the first. Horovod reads names from
its cache from the second on.
"""
_DTYPES = {"float64": torch.float64, "float32": torch.float32, "as run": torch.float32}


class Data(NamedTuple):
    """The run's training set, on its device."""

    images: torch.Tensor
    labels: torch.Tensor


def prove(
    make_replica: MakeReplica,
    data: Data,
    config: RunConfig,
    kind: PassKind,
    note: Callable[[float], None],
    *,
    leads: bool,
    brief: bool = False,
) -> ParityPass:
    """Train ``STEPS`` steps through a strategy and through the reference.

    Every rank calls it at the same point. All ranks train the reference for one step, so that each can
    compare its first update. One rank leads, and trains the reference to the end. Equal hashes extend its
    result to the others. The passes ``float64`` and ``float32`` train by plain SGD; ``as run`` in float32
    with the run's own optimizer. ``note`` is called before every step with the seconds of the last one. A
    ``brief`` pass of a large model takes ``_FEW_STEPS``, so that a launch starts soon.
    """
    begun = time.monotonic()
    config = _shortened(config, kind)
    with _restored(data.images.device):
        outcome = _follow(make_replica, data, config, _DTYPES[kind], note, leads=leads, brief=brief)
    return ParityPass(
        kind=kind,
        steps=outcome.steps,
        samples_per_rank=config.batch_size_per_rank,
        optimizer=config.optimizer,
        learning_rate=config.learning_rate,
        hash=outcome.hash,
        share_of_first_update=_finite(outcome.first_update.share),
        error_of_first_update=_finite(outcome.first_update.error),
        error_of_whole_update=_finite(outcome.whole_update.error),
        differences=[_finite(difference) for difference in outcome.differences],
        seconds=time.monotonic() - begun,
    )


def hash_parameters(model: nn.Module) -> str:
    """Return the SHA-256 of the bytes of every parameter.

    Buffers do not count: running statistics differ between ranks.
    """
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def relative_difference(found: nn.Module, expected: nn.Module) -> float:
    """Return the largest relative difference within a parameter, over all parameters.

    It is relative to the largest number in the parameter. It is NaN if either model holds a NaN.
    """
    worst = 0.0
    with torch.no_grad():
        for f, e in zip(found.parameters(), expected.parameters(), strict=True):
            # A parameter of zeros is compared with the other's size, so nothing is divided by zero.
            size = max(float(e.abs().max()), float(f.abs().max())) or 1.0
            difference = float((f - e).abs().max()) / size
            worst = difference if math.isnan(difference) else max(worst, difference)
            if math.isnan(worst):
                break
    return worst


class _Update(NamedTuple):
    """An update of all parameters, compared with the right one."""

    share: float
    """Component along the right update.

    1 is right, 0 is none, the number of ranks is a sum.
    """
    error: float
    """Distance from the right update, over its size."""


class _Reference:
    """The same training in a single process, as in a tutorial."""

    def __init__(self, model: nn.Module, make_optimizer: MakeOptimizer, batches: Iterator[Batch]) -> None:
        self.model = model
        self._start = [p.detach().clone() for p in model.parameters()]
        self._optimizer = make_optimizer(model.parameters())
        self._batches = batches

    def step(self) -> None:
        inputs, targets = next(self._batches)
        self._optimizer.zero_grad()
        loss_function(self.model(inputs), targets).backward()
        self._optimizer.step()

    @torch.no_grad()
    def compare_update(self, found: nn.Module) -> _Update:
        """Compare another model's update from the same start."""
        along, apart, whole = 0.0, 0.0, 0.0
        for f, e, s in zip(found.parameters(), self.model.parameters(), self._start, strict=True):
            right, wrong = (e - s).flatten(), (f - e).flatten()
            along += float(torch.dot((f - s).flatten(), right))
            apart += float(torch.dot(wrong, wrong))
            whole += float(torch.dot(right, right))
        return _Update(along / whole, math.sqrt(apart / whole)) if whole else _Update(math.nan, math.nan)

    def drop_start(self) -> None:
        """Free the start; no update can be compared after it."""
        self._start.clear()


class _Outcome(NamedTuple):
    steps: int
    hash: str
    first_update: _Update
    whole_update: _Update
    """Update of all steps; NaN on ranks that do not lead."""
    differences: list[float]


def _follow(
    make_replica: MakeReplica,
    data: Data,
    config: RunConfig,
    dtype: torch.dtype,
    note: Callable[[float], None],
    *,
    leads: bool,
    brief: bool,
) -> _Outcome:
    def batches(shard: tuple[int, int], config: RunConfig) -> Iterator[Batch]:
        for inputs, targets in Batches(*data, shard, config):
            yield inputs.to(dtype), targets

    torch.manual_seed(config.seed)
    model = build_model(config.model, dropout=False).to(data.images.device, dtype)
    steps = _FEW_STEPS if brief and sum(p.numel() for p in model.parameters()) > _LARGE else STEPS
    reference = _Reference(copy.deepcopy(model), optimizer_maker(config), batches((0, 1), _combined(config)))
    replica = make_replica(model, optimizer_maker(config))
    replica.accumulate(config.accumulate)
    own = batches(replica.shard, config)
    differences: list[float] = []
    first_update = whole_update = _Update(math.nan, math.nan)
    seconds = 0.0
    for step in range(steps):
        note(seconds)
        begun = time.monotonic()
        train(replica, own, 1)
        whole = replica.whole()
        if leads or step == 0:
            reference.step()
            differences.append(relative_difference(whole, reference.model))
        if step == 0:
            first_update = reference.compare_update(whole)
        if not leads:
            reference.drop_start()
        seconds = time.monotonic() - begun
    whole = replica.whole()
    if leads:
        whole_update = reference.compare_update(whole)
    return _Outcome(steps, hash_parameters(whole), first_update, whole_update, differences)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _shortened(config: RunConfig, kind: PassKind) -> RunConfig:
    size = min(config.batch_size_per_rank, max(1, _SAMPLES // config.ranks))
    config = msgspec.structs.replace(config, batch_size_per_rank=size)
    if kind == "as run":
        return config
    return msgspec.structs.replace(config, optimizer="sgd", learning_rate=_LEARNING_RATE)


def _combined(config: RunConfig) -> RunConfig:
    """Give one rank the samples of all ranks in a single pass."""
    return msgspec.structs.replace(
        config, ranks=1, accumulate=1, batch_size_per_rank=config.global_batch_size
    )


@contextmanager
def _restored(device: torch.device) -> Iterator[None]:
    """Restore the random generators, and free the memory."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
    gc.collect()  # a wrapper and its hooks hold each other
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    # The allocator keeps freed memory for the gradients of every step (see schema/environment.py).
    ctypes.CDLL(None).malloc_trim(0)

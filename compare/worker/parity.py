"""Whether an arm trains what a single process would: a short training beside an oracle, on every rank.

A fresh copy of the run's model trains through the arm's own strategy. The oracle is plain torch without
a group, and sees in each step the batches of all ranks as one. What is looked at is gradients, and plain
SGD passes them on as they are. Adam does not: it divides each by its own size, so that a gradient which
is nought but for rounding moves its parameter as far as any other. Twenty float64 steps of the convnet
with averaged gradients end 3e-12 from the oracle under Adam, 3e-16 under SGD. For the same reason the
learning rate is not the run's: with a tiny one every strategy would pass, with a huge one none.

The rank's training must not notice that any of this has happened: ``prove`` leaves the generators and
the memory as it found them.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import hashlib
import math
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import torch
from torch import nn

from compare.schema.job import STEPS
from compare.schema.results import ParityPass
from compare.worker.loop import train
from compare.worker.workload import Batches, build_model, loss_function, optimizer_maker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backends.base import MakeOptimizer, Replica
    from compare.schema.config import RunConfig
    from compare.schema.results import PassKind
    from compare.worker.loop import Batch

    MakeReplica = Callable[[nn.Module, MakeOptimizer], Replica]

_SAMPLES = 8
"""Of all ranks together in a step, where there are no more ranks than that: a gradient of few samples
shows every fault that one of many does, and costs the oracle little."""
_LEARNING_RATE = 0.01
_LARGE = 4_000_000
"""Parameters; twenty steps of 20 million take about 10 s, and 40 s where their gradients travel slowly."""
_FEW_STEPS = 5
"""All that is known to go wrong does so by the third: DDP rebuilds its buckets after the first, and Horovod
finds the names in its cache from the second on."""
_DTYPES = {"float64": torch.float64, "float32": torch.float32, "as run": torch.float32}


class Data(NamedTuple):
    """The training set as the run has it, on its device."""

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
    """Train ``STEPS`` steps through a strategy and beside it; every rank calls it at the same point.

    All ranks follow the oracle through the first step, so that each can say what came of its own first
    update; one of them leads, and follows it to the end. The others' hashes tie them to that one.

    Args:
        make_replica: makes the arm's replica of a model.
        data: real samples.
        config: the run's.
        kind: ``float64`` and ``float32`` by plain SGD; ``as run`` in float32 with the run's own optimizer.
        note: told before every step how many seconds the last one took.
        leads: whether this rank is the one that follows the oracle to the end.
        brief: take ``_FEW_STEPS`` where the model is large, so that no launch waits long for its proof.
    """
    begun = time.monotonic()
    config = _shortened(config, kind)
    with _left_as_found(data.images.device):
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
    """SHA-256 over the bytes of every parameter, in the model's order.

    Buffers do not count: running statistics are each rank's own.
    """
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def relative_difference(found: nn.Module, expected: nn.Module) -> float:
    """Largest difference within a parameter over the largest number in it; the worst parameter counts.

    Not a number where either model holds something that is none.
    """
    worst = 0.0
    with torch.no_grad():
        for f, e in zip(found.parameters(), expected.parameters(), strict=True):
            # A parameter of noughts only is held to the other's size: no division by nought.
            size = max(float(e.abs().max()), float(f.abs().max())) or 1.0
            difference = float((f - e).abs().max()) / size
            worst = difference if math.isnan(difference) else max(worst, difference)
            if math.isnan(worst):
                break
    return worst


class _Update(NamedTuple):
    """An update of all parameters, beside the right one."""

    share: float
    """Its component along the right one: 1 is right, 0 none at all, the number of ranks a sum."""
    error: float
    """Its distance from the right one, over the size of that."""


class _Oracle:
    """The same training in a single process, as a tutorial would write it."""

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
    def hold_against_update(self, found: nn.Module) -> _Update:
        """Hold what another model has moved, from the same start, against what the oracle has.

        Raises:
            ValueError: the start is forgotten.
        """
        along, apart, whole = 0.0, 0.0, 0.0
        for f, e, s in zip(found.parameters(), self.model.parameters(), self._start, strict=True):
            right, wrong = (e - s).flatten(), (f - e).flatten()
            along += float(torch.dot((f - s).flatten(), right))
            apart += float(torch.dot(wrong, wrong))
            whole += float(torch.dot(right, right))
        return _Update(along / whole, math.sqrt(apart / whole)) if whole else _Update(math.nan, math.nan)

    def forget_start(self) -> None:
        """Give back the memory of a model, where no other update will be held against it."""
        self._start.clear()


class _Outcome(NamedTuple):
    steps: int
    hash: str
    first_update: _Update
    whole_update: _Update
    """All steps together; not a number on ranks that do not lead."""
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
    oracle = _Oracle(copy.deepcopy(model), optimizer_maker(config), batches((0, 1), _combined(config)))
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
            oracle.step()
            differences.append(relative_difference(whole, oracle.model))
        if step == 0:
            first_update = oracle.hold_against_update(whole)
        if not leads:
            oracle.forget_start()
        seconds = time.monotonic() - begun
    whole = replica.whole()
    if leads:
        whole_update = oracle.hold_against_update(whole)
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
    """Let one rank see in a single pass what all see in a step."""
    return msgspec.structs.replace(
        config, ranks=1, accumulate=1, batch_size_per_rank=config.global_batch_size
    )


@contextmanager
def _left_as_found(device: torch.device) -> Iterator[None]:
    """Put back the random generators, and give back the memory."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
    gc.collect()  # a wrapper and its hooks hold each other
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    # The allocator is told to keep what is freed (see launch/environment.py), for gradients of every step.
    ctypes.CDLL(None).malloc_trim(0)

"""Compare an arm with a single process on the same samples.

A new copy of the run's model trains through the arm's strategy. The reference is plain torch without a
group. It takes the same step from the same parameters. It computes the gradient of each shard alone, with
that shard's random numbers and buffers. Then it averages them. Before the next step it starts again from the
arm's parameters. So rounding does not grow from step to step, and dropout and BatchNorm may be there. Its
optimizer keeps a state of its own.

The pass ``as run`` is no gate. It shows how far the arm drifts from one process on the combined batch, which
trains on by itself. Rounding makes a difference there, and so do dropout and BatchNorm.

The gates train by plain SGD, which applies gradients as they are. Adam divides each by its own size. A
gradient that is zero except for rounding then moves its parameter as far as any other. The learning rate is
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import islice
from typing import NamedTuple

import torch
from torch import nn

from backends.base import BackendError, MakeOptimizer, Replica
from compare.schema.config import RunConfig
from compare.schema.job import STEPS
from compare.schema.results import ParityPass, PassKind
from compare.worker.blocks import Side
from compare.worker.randomness import same_randomness, seed_generators
from compare.worker.task import Task

MakeReplica = Callable[[nn.Module, MakeOptimizer], Replica]

_LARGE = 4_000_000
"""Parameters of a large model.

Twenty steps of 20 million parameters take about 10 s, and 40 s over a slow network.
"""
_LEAST_STEPS = 3
"""Steps that are compared, even if the single process itself diverges."""
_FEW_STEPS = 5
"""Steps of a brief pass with a large model.

All known faults show by the third step. DDP rebuilds its buckets after the first. Horovod reads names from
its cache from the second on.
"""


def prove(
    make_replica: MakeReplica,
    task: Task,
    kind: PassKind,
    note: Callable[[float], None],
    *,
    leads: bool,
    brief: bool = False,
) -> ParityPass:
    """Train ``STEPS`` steps through a strategy, each beside the reference.

    Every rank calls it at the same point. All ranks take the first step of the reference, so that each can
    compare its first update. One rank leads, and compares all steps. Equal hashes extend its result to the
    others. The passes ``float64`` and ``float32`` train by plain SGD; ``as run`` in float32 with the run's
    own optimizer. ``note`` is called before every step with the seconds of the last one. A ``brief`` pass of
    a large model takes ``_FEW_STEPS``, so that a launch starts soon.
    """
    begun = time.monotonic()
    task = task.for_proof(kind)
    with _restored(task.device):
        outcome = _follow(make_replica, task, note, leads=leads, brief=brief, drifts=kind == "as run")
    return ParityPass(
        kind=kind,
        steps=outcome.steps,
        samples_per_rank=task.config.batch_size_per_rank,
        optimizer=task.config.optimizer,
        learning_rate=task.config.learning_rate,
        hash=outcome.hash,
        unused=outcome.unused,
        diverged=outcome.diverged,
        share_of_first_update=_finite(outcome.first_update.share),
        error_of_first_update=_finite(outcome.first_update.error),
        error_of_whole_update=_finite(outcome.error_of_all),
        differences=[_finite(difference) for difference in outcome.differences],
        seconds=time.monotonic() - begun,
    )


def hash_parameters(model: nn.Module) -> str:
    """Return the SHA-256 of the bytes of every parameter.

    Buffers do not count: running statistics differ between ranks.
    """
    return hash_tensors(model.parameters())


def hash_tensors(tensors: Iterable[torch.Tensor]) -> str:
    """Return the SHA-256 of the bytes of tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        # NumPy has no bfloat16.
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
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
    """The same training in a single process, shard by shard.

    Where it ``drifts``, it is on the combined batch, and never starts again from the arm's parameters.
    """

    def __init__(self, model: nn.Module, task: Task, replica: Replica, *, drifts: bool) -> None:
        self.model = model
        self._task = task
        self._drifts = drifts
        self._optimizer = task.make_optimizer(model.parameters())
        self._before_step = task.before_step()
        count = 1 if drifts else replica.shard[1]
        self._shards = [iter(task.batches((index, count))) for index in range(count)]
        self._buffers = [_buffers_of(model) for _ in range(count)]
        self._own = 0 if drifts else replica.shard[0]
        self._broadcasts = replica.broadcasts_buffers
        self._start: list[torch.Tensor] = []
        self._used_by: dict[str, set[int]] = {}
        self._apart: list[torch.Tensor] = []

    @torch.no_grad()
    def anchor(self, found: nn.Module) -> None:
        """Start the next step from the parameters of another model."""
        if self._drifts and self._start:
            return
        for own, other in zip(self.model.parameters(), found.parameters(), strict=True):
            own.copy_(other)
        self._start = self._start or [p.detach().clone() for p in self.model.parameters()]
        self._buffers[self._own] = _buffers_of(found)
        if self._broadcasts:
            self._buffers = [self._buffers[0]] * len(self._shards)

    def step(self, step: int) -> None:
        """Take a step by the mean of all shards' gradients."""
        passes = self._task.config.accumulate
        self._optimizer.zero_grad()
        for index, batches in enumerate(self._shards):
            seed_step(self._task.config, step, index)
            with torch.no_grad():
                for own, kept in zip(self.model.buffers(), self._buffers[index], strict=True):
                    own.copy_(kept)
            with self._noting_use(index) if step == 0 else nullcontext():
                for batch in islice(batches, passes):
                    loss = self._task.loss(self.model, batch)
                    (loss / (passes * len(self._shards))).backward()
            self._buffers[index] = _buffers_of(self.model)
        if self._before_step:
            self._before_step(self.model, [self._optimizer])
        self._optimizer.step()

    @contextmanager
    def _noting_use(self, shard: int) -> Iterator[None]:
        """Note which parameters get a gradient from a shard."""
        with ExitStack() as noting:
            for name, parameter in self.model.named_parameters():
                if parameter.requires_grad:
                    used = self._used_by.setdefault(name, set())
                    hook = parameter.register_post_accumulate_grad_hook(lambda _, used=used: used.add(shard))
                    noting.callback(hook.remove)
            yield

    def unused(self, shards: int) -> list[str]:
        """Name the parameters that got a gradient from so many shards."""
        return [name for name, used in self._used_by.items() if len(used) == shards]

    def require_every_gradient(self) -> None:
        """Require that every parameter got a gradient from every shard.

        Raises:
            BackendError: names those that did not.
        """
        count = len(self._shards)
        for where, names in (
            ("on any rank", self.unused(0)),
            ("on some ranks", [name for few in range(1, count) for name in self.unused(few)]),
        ):
            if names:
                raise BackendError(
                    f"these parameters take no part in the loss {where}: {', '.join(names)}. This arm cannot "
                    "average them. Leave them out of the model, set requires_grad to False, or use "
                    "ddp:find_unused_parameters=true."
                )

    @torch.no_grad()
    def compare_update(self, found: nn.Module) -> _Update:
        """Compare the first update of another model."""
        along, apart, whole = 0.0, 0.0, 0.0
        for f, e, s in zip(found.parameters(), self.model.parameters(), self._start, strict=True):
            right, wrong = (e - s).flatten(), (f - e).flatten()
            along += float(torch.dot((f - s).flatten(), right))
            apart += float(torch.dot(wrong, wrong))
            whole += float(torch.dot(right, right))
        return _Update(along / whole, math.sqrt(apart / whole)) if whole else _Update(math.nan, math.nan)

    def is_finite(self) -> bool:
        """Return whether all parameters are numbers."""
        return all(bool(torch.isfinite(parameter).all()) for parameter in self.model.parameters())

    def drop_start(self) -> None:
        """Free the start; no update can be compared after it."""
        self._start.clear()

    @torch.no_grad()
    def add_error(self, found: nn.Module) -> None:
        """Add another model's distance after this step to that of all steps."""
        self._apart = self._apart or [torch.zeros_like(p) for p in self.model.parameters()]
        for total, f, e in zip(self._apart, found.parameters(), self.model.parameters(), strict=True):
            total.add_(f).sub_(e)

    @torch.no_grad()
    def error_of_all(self, found: nn.Module) -> float:
        """Return the distance from all right updates together, over their size."""
        apart = sum(float(torch.dot(a.flatten(), a.flatten())) for a in self._apart)
        right = [f - s - a for f, s, a in zip(found.parameters(), self._start, self._apart, strict=True)]
        whole = sum(float(torch.dot(r.flatten(), r.flatten())) for r in right)
        return math.sqrt(apart / whole) if whole else math.nan


def seed_step(config: RunConfig, step: int, shard: int) -> None:
    """Set the random generators for a shard's part of a step."""
    seed_generators((config.seed * 1_000_003 + step) * 1_009 + shard)


def _buffers_of(model: nn.Module) -> list[torch.Tensor]:
    return [buffer.detach().clone() for buffer in model.buffers()]


class _Outcome(NamedTuple):
    steps: int
    hash: str
    first_update: _Update
    error_of_all: float
    """Of all steps together; NaN on ranks that do not lead."""
    differences: list[float]
    unused: list[str]
    diverged: bool


def _follow(
    make_replica: MakeReplica,
    task: Task,
    note: Callable[[float], None],
    *,
    leads: bool,
    brief: bool,
    drifts: bool,
) -> _Outcome:
    model = task.build_model()
    steps = _FEW_STEPS if brief and sum(p.numel() for p in model.parameters()) > _LARGE else STEPS
    copied = copy.deepcopy(model)
    replica = make_replica(model, task.make_optimizer)
    task.prepare(replica)
    reference = _Reference(copied, task, replica, drifts=drifts)
    own = Side(replica, iter(task.batches(replica.shard)), task.loss, task.before_step())
    whole = replica.whole()
    differences: list[float] = []
    diverged = False
    first_update, error_of_all, seconds = _Update(math.nan, math.nan), math.nan, 0.0
    for step in range(steps):
        note(seconds)
        begun = time.monotonic()
        if leads or step == 0:
            reference.anchor(whole)
            reference.step(step)
        if step == 0 and replica.needs_every_gradient:
            reference.require_every_gradient()
        seed_step(task.config, step, replica.shard[0])
        own.train(1)
        whole = replica.whole()
        if leads or step == 0:
            difference = relative_difference(whole, reference.model)
            diverged = diverged or (
                math.isnan(difference) and len(differences) >= _LEAST_STEPS and not reference.is_finite()
            )
            if not diverged:
                differences.append(difference)
        if leads:
            reference.add_error(whole)
        if step == 0:
            first_update = reference.compare_update(whole)
            if not leads:
                reference.drop_start()
        seconds = time.monotonic() - begun
    if leads:
        error_of_all = reference.error_of_all(whole)
    hashed, unused = hash_parameters(whole), reference.unused(0)
    # The training of the gate diverges with some models: then the steps before that prove the arm.
    taken = len(differences) if leads else steps
    return _Outcome(taken, hashed, first_update, error_of_all, differences, unused, diverged=diverged)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


@contextmanager
def _restored(device: torch.device) -> Iterator[None]:
    """Restore the random generators, and free the memory."""
    with same_randomness(device):
        yield
    gc.collect()  # a wrapper and its hooks hold each other
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    # The allocator keeps freed memory for the gradients of every step (see schema/environment.py).
    ctypes.CDLL(None).malloc_trim(0)

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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from backends.base import BackendError, Batch, MakeOptimizer, Replica
from compare.schema.job import STEPS
from compare.schema.parity import ParityPass, PassKind, WrongStep, rounding_limit
from compare.worker.blocks import make_side
from compare.worker.randomness import same_randomness
from compare.worker.reference import (
    Reference,
    Update,
    bytes_of,
    hash_batch,
    seed_layers,
    seed_step,
)
from compare.worker.task import Task
from compare.workload import WorkloadError

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
        outcome = _follow(make_replica, task, kind, note, leads=leads, brief=brief)
    steps = outcome.steps
    return ParityPass(
        kind=kind,
        steps=outcome.taken,
        shards=steps.shards,
        samples_per_rank=outcome.samples_per_rank,
        optimizer=task.config.optimizer,
        learning_rate=task.config.learning_rate,
        hash=outcome.hash,
        unused=outcome.unused,
        diverged=steps.diverged,
        share_of_first_update=_finite(steps.first.share),
        error_of_first_update=_finite(steps.first.error),
        error_of_whole_update=_finite(outcome.error_of_all),
        differences=[_finite(difference) for difference in steps.differences],
        updates=[_finite(update) for update in steps.updates],
        wrong=steps.wrong,
        optimizer_steps=outcome.optimizer_steps,
        first_batches=outcome.first_batches,
        shared_samples=outcome.shared_samples,
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
        digest.update(bytes_of(tensor).data)
    return digest.hexdigest()


class _Steps:
    """The steps of an arm beside those of the reference."""

    def __init__(self, kind: PassKind, shards: int) -> None:
        self.differences: list[float] = []
        self.updates: list[float] = []
        self.wrong: WrongStep | None = None
        self.diverged = False
        self.first = Update(math.nan, math.nan)
        self._kind = kind
        self.shards = shards

    def compare(self, step: int, found: nn.Module, reference: Reference) -> None:
        """Compare a step of both; explain the first that rounding does not."""
        difference, update = reference.difference(found), reference.update()
        # The training of the gate diverges with some models: then the steps before that prove the arm.
        self.diverged = self.diverged or (
            math.isnan(difference.size)
            and len(self.differences) >= _LEAST_STEPS
            and not reference.is_finite()
        )
        if self.diverged:
            return
        self.differences.append(difference.size)
        self.updates.append(update)
        if step == 0:
            self.first = reference.compare_update(found)
        if self._kind == "as run" or self.wrong:
            return
        if not difference.size <= rounding_limit(self._kind, update, self.shards):
            self.wrong = reference.explain(found, step, difference)


class _Outcome(NamedTuple):
    steps: _Steps
    taken: int
    samples_per_rank: int
    hash: str
    error_of_all: float
    """Of all steps together; NaN on ranks that do not compare all."""
    unused: list[str]
    optimizer_steps: list[int]
    first_batches: list[str]
    shared_samples: float


def _follow(
    make_replica: MakeReplica,
    task: Task,
    kind: PassKind,
    note: Callable[[float], None],
    *,
    leads: bool,
    brief: bool,
) -> _Outcome:
    model = task.build_model()
    count = _FEW_STEPS if brief and sum(p.numel() for p in model.parameters()) > _LARGE else STEPS
    copied = copy.deepcopy(model)
    replica = make_replica(model, task.make_optimizer)
    task.prepare(replica)
    task = task.for_proof_of(replica)
    _prepare_layers(replica, copied, task)
    reference = Reference(copied, task, replica, drifts=kind == "as run")
    # Each rank can go wrong by itself in a step that is the user's own.
    leads = leads or replica.takes_whole_step
    own = make_side(replica, task, _first_noted(task, replica, reference))
    whole = replica.whole()
    steps, optimizer_steps, seconds = _Steps(kind, replica.shard[1]), [], 0.0
    for step in range(count):
        note(seconds)
        begun = time.monotonic()
        if leads or step == 0:
            reference.anchor(whole)
            reference.step(step)
        if step == 0 and replica.needs_every_gradient:
            reference.require_every_gradient()
        seed_step(task.config, step, replica.shard[0])
        with _counted_steps() as counted:
            own.train(1)
        optimizer_steps.append(max(counted.values(), default=0))
        whole = replica.whole()
        if leads:
            reference.add_error(whole)
        if leads or step == 0:
            steps.compare(step, whole, reference)
        if not leads:
            reference.drop_start()
        seconds = time.monotonic() - begun
    return _Outcome(
        steps,
        len(steps.differences) if leads else count,
        task.config.batch_size_per_rank,
        hash_parameters(whole),
        reference.error_of_all(whole) if leads else math.nan,
        reference.unused(0),
        optimizer_steps if replica.takes_whole_step else [],
        reference.first_batches,
        reference.shared_samples,
    )


def _first_noted(task: Task, replica: Replica, reference: Reference) -> Iterator[Batch]:
    """Yield the batches of the arm, whose first must be the reference's.

    Raises:
        WorkloadError: the user's loader yields other samples when it is called again.
    """
    for number, batch in enumerate(task.batches(replica.shard)):
        if number == 0 and task.has_own_loader and reference.shard_count == replica.shard[1]:
            expected = reference.first_batches[replica.shard[0]]
            if hash_batch(batch) != expected:
                raise WorkloadError(
                    "the loader yields other samples when it is called again. Its order must depend on its "
                    "arguments and on torch's seed alone."
                )
        yield batch


def _prepare_layers(replica: Replica, reference: nn.Module, task: Task) -> None:
    """Prepare the proof of a replica with some layers alone.

    Raises:
        BackendError: the workload changes gradients, and a rank has some of them alone.
    """
    if replica.first_layer is None:
        return
    if task.changes_gradients:
        raise BackendError(
            "the workload's before_step would see the gradients of one rank's layers alone. Leave it out, or "
            "leave this arm out."
        )
    # One process draws the random numbers of all layers in turn, and a rank those of its own.
    seed_layers(reference, 0)
    seed_layers(replica.model, replica.first_layer)


@contextmanager
def _counted_steps() -> Iterator[Counter[int]]:
    """Count the steps of each optimizer; Horovod's calls another's within."""
    counted: Counter[int] = Counter()
    depth = 0

    def enter(*_: object) -> None:
        nonlocal depth
        depth += 1

    def leave(optimizer: torch.optim.Optimizer, *_: object) -> None:
        nonlocal depth
        depth -= 1
        counted[id(optimizer)] += depth == 0

    hooks = register_optimizer_step_pre_hook(enter), register_optimizer_step_post_hook(leave)
    try:
        yield counted
    finally:
        for hook in hooks:
            hook.remove()


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
    # The allocator keeps freed memory for the gradients of every step (see schema/environment.py).
    ctypes.CDLL(None).malloc_trim(0)

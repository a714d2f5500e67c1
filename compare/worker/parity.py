"""Compare an arm with a single process on the same samples.

A new copy of the run's model trains through the arm's strategy. The reference, plain torch without a group,
takes the same steps in a single process. It computes the gradient of each shard separately, with that shard's
random numbers, buffers and state, and then averages the gradients. Before each step it takes over the arm's
parameters, but keeps the state of its own optimizer. So rounding does not grow from step to step, and the
model may have dropout and BatchNorm.

The pass ``as run`` is no gate. It shows how far the arm drifts from one process that trains on the combined
batch and takes over the arm's parameters only at its start. Rounding, dropout and BatchNorm all add to this
drift.

The gates train by plain SGD, which applies gradients as they are. Adam divides each gradient by its own size,
so one that is zero except for rounding moves its parameter as far as any other. The learning rate is not the
run's either, because with a tiny one every strategy would pass, and with a huge one none.

A clip may act in none of these steps, or in all of them. So a workload that changes gradients takes four more
steps, each from the parameters at the end of the last one. All gradients are scaled down in two of them, and
only those of the first shard are scaled up in the other two.

``prove`` restores the random generators and the memory, so the training after it is not changed.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic

import msgspec
import torch
from torch import nn

from backends.base import BackendError, Batch, Loss, MakeOptimizer, Replica
from compare.schema.job import STEPS
from compare.schema.parity import ParityPass, PassKind, WrongStep, rounding_limit
from compare.worker.blocks import make_side
from compare.worker.difference import Update
from compare.worker.pace import Pace
from compare.worker.randomness import same_randomness
from compare.worker.reference import Reference
from compare.worker.reference_step import StepReference
from compare.worker.shards import bytes_of, hash_batch, scale_of, seed_layers, seed_step
from compare.worker.step_record import StepRecord, recorded_step
from compare.worker.task import Task
from compare.workload import WorkloadError

MakeReplica = Callable[[nn.Module, MakeOptimizer], Replica]

_LARGE = 4_000_000
"""Number of parameters above which a model is large.

Twenty steps of 20 million parameters take about 10 s, and 40 s over a slow network.
"""
_LEAST_STEPS = 3
"""Steps that are always compared; after them, a divergence of the reference ends the comparison."""
_FEW_STEPS = 5
"""Steps of a brief pass with a large model.

All known faults show by the third step. DDP rebuilds its buckets after the first step, and Horovod reads
names from its cache from the second step on.
"""
_SCALES = (2.0**-14, 2.0**-27, 2.0**14, 2.0**27)
"""Factors of the gradients in the steps that show a clip; powers of two, to avoid rounding."""


def prove(
    make_replica: MakeReplica,
    task: Task,
    kind: PassKind,
    pace: Pace | None = None,
    *,
    leads: bool,
    brief: bool = False,
    scaled: bool = True,
) -> ParityPass:
    """Train ``STEPS`` steps through a strategy, and compare each with the reference. Collective.

    Every rank takes the reference's first step, and compares its own first update with it. The rank that
    ``leads`` compares all steps, and equal hashes extend its result to the others. The passes ``float64`` and
    ``float32`` train by plain SGD, and ``as run`` trains in float32 with the run's own optimizer. A ``brief``
    pass of a large model takes ``_FEW_STEPS``, so that the launch starts soon. ``scaled`` allows
    steps with scaled gradients, which show a clip, but half precision cannot carry all of these scales.
    """
    begun = monotonic()
    with _restored(task.device):
        proof = _Proof(make_replica, task.for_proof(kind), kind, pace or Pace(), leads=leads)
        taken = proof.take(brief=brief, scaled=scaled)
    return msgspec.structs.replace(taken, seconds=monotonic() - begun)


def hash_parameters(model: nn.Module) -> str:
    """Return the SHA-256 over the bytes of all parameters.

    Buffers are left out, because running statistics differ between ranks.
    """
    return hash_tensors(model.parameters())


def hash_tensors(tensors: Iterable[torch.Tensor]) -> str:
    """Return the SHA-256 over the bytes of all tensors, in their order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(bytes_of(tensor).data)
    return digest.hexdigest()


class _Steps:
    """The differences between an arm's steps and those of the reference, so far."""

    def __init__(self, kind: PassKind, shards: int) -> None:
        self.differences: list[float] = []
        self.updates: list[float] = []
        self.wrong: WrongStep | None = None
        self.diverged = False
        self.first = Update(math.nan, math.nan)
        self._kind = kind
        self.shards = shards

    def compare(self, step: int, found: nn.Module, reference: Reference, record: StepRecord) -> None:
        """Compare a step of the arm with the reference's, and explain the first one beyond rounding."""
        difference, update = reference.difference(found), reference.update()
        # With some models the training of a gate diverges. Then the steps before that prove the arm.
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
        limit = rounding_limit(self._kind, update, self.shards)
        reference.tell_apart(limit)
        if not difference.size <= limit:
            self.wrong = msgspec.structs.replace(
                reference.explain(found, step, difference),
                only=reference.wrong_parameters(found, limit) == 1,
                structure=_structure(found, difference.parameter, record) if reference.is_plain else "",
                rate=record.rate_over(reference.rate),
            )


def _structure(found: nn.Module, wrong: str, record: StepRecord) -> str:
    """Return why a step is not one backward pass and one optimizer's step; empty if it is."""
    frozen = [name for name, parameter in found.named_parameters() if not parameter.requires_grad]
    moved = ["a parameter that does not train changes"] if wrong in frozen else []
    return ", ".join(filter(None, [record.structure, *moved]))


class _Proof:
    """One pass of a proof, in which an arm and the reference train step by step."""

    def __init__(
        self, make_replica: MakeReplica, task: Task, kind: PassKind, pace: Pace, *, leads: bool
    ) -> None:
        self._pace, self._kind = pace, kind
        pace.step(0)
        pace.note(0)
        self._scale = 1.0
        model = task.build_model()
        self._parameters = list(model.parameters())
        if task.changes_gradients:
            self._scale_gradients_of_own_step()
        self._replica = make_replica(model, task.make_optimizer)
        task.prepare(self._replica)
        self._task = task.for_proof_of(self._replica)
        # Each rank can go wrong by itself in a step that is the user's own.
        self._leads = leads or self._replica.takes_whole_step
        self._whole = self._replica.whole()
        drifts = kind == "as run"
        own = self._replica.takes_whole_step and self._task.has_reference_step and not drifts
        make_reference = StepReference if own else Reference
        self._reference = make_reference(self._task, self._replica, self._whole, pace, drifts=drifts)
        _prepare_layers(self._replica, self._reference.model, self._task)
        first = _first_noted(self._task, self._replica, self._reference)
        self._side = make_side(self._replica, self._task, first)
        self._steps = _Steps(kind, self._replica.shard[1])
        self._optimizer_steps: list[int] = []
        self._combined: float | None = None

    def take(self, *, brief: bool, scaled: bool) -> ParityPass:
        """Take all steps of the arm and of the reference, and return what they showed."""
        large = sum(parameter.numel() for parameter in self._parameters) > _LARGE
        count = _FEW_STEPS if brief and large else STEPS
        for step in range(count):
            self._step(step)
        for number, scale in enumerate(_SCALES if scaled and self._can_scale() else (), start=count):
            self._step(number, scale)
            count += 1
        self._meet(count)
        return self._result(count)

    def _step(self, step: int, scale: float = 1.0) -> None:
        """Take a step of the reference and a step of the arm, and compare them.

        All ranks meet before the arm's step, because only the ranks that lead take every reference step.
        """
        reference, kept = self._reference, self._kept() if scale != 1 else []
        self._pace.step(step)
        if self._leads or step == 0:
            reference.anchor(self._whole)
            reference.step(step, scale)
        if step == 0:
            if self._replica.needs_every_gradient:
                reference.require_every_gradient()
            if self._leads and self._kind == "float64":
                self._pace.note(self._steps.shards)
                self._combined = reference.distance_of_combined() if self._task.is_own else None
        self._meet(step)
        self._pace.note()
        record = self._train(step, scale)
        self._whole = self._replica.whole()
        if self._leads:
            reference.add_error(self._whole)
        if self._leads or step == 0:
            self._steps.compare(step, self._whole, reference, record)
        if not self._leads:
            reference.drop_start()
        if kept:
            self._put_back(kept)

    def _train(self, step: int, scale: float) -> StepRecord:
        """Take the arm's step, and return its record, which is empty unless the step is the user's own."""
        own_step = self._replica.takes_whole_step
        scale = scale_of(self._replica.shard[0], scale)
        side = (
            self._side
            if own_step or scale == 1
            else self._side._replace(loss=_scaled(self._side.loss, scale))
        )
        self._scale = scale if own_step else 1.0
        seed_step(self._task.config, step, self._replica.shard[0])
        if not own_step:
            side.train(1)
            return StepRecord([])
        with recorded_step(self._parameters, backward=True) as record:
            side.train(1)
        self._optimizer_steps.append(record.optimizer_steps)
        return record

    def _meet(self, step: int) -> None:
        """Wait for all ranks, with more time in steps where each takes the reference's passes."""
        all_lead = step == 0 or self._replica.takes_whole_step
        self._pace.meet(self._steps.shards if all_lead else 1)

    # ---- scaled steps ----

    def _scale_gradients_of_own_step(self) -> None:
        """Add hooks that scale the gradients of a step of the user's own, which calls its loss itself."""
        for parameter in self._parameters:
            if parameter.requires_grad:
                parameter.register_hook(lambda gradient: None if self._scale == 1 else gradient * self._scale)

    def _can_scale(self) -> bool:
        """Return whether steps with scaled gradients are possible, and may show a clip.

        A step of the user's own needs the hooks of the parameters, which are lost if sharding replaces them.
        """
        if not self._task.changes_gradients:
            return False
        if self._task.has_reference_step:
            return False
        held = self._replica.model.parameters()
        return not self._replica.takes_whole_step or list(map(id, held)) == list(map(id, self._parameters))

    def _kept(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self._replica.model.parameters()]

    @torch.no_grad()
    def _put_back(self, kept: list[torch.Tensor]) -> None:
        """Give the arm's model the parameters that it had before this step."""
        for parameter, value in zip(self._replica.model.parameters(), kept, strict=True):
            parameter.copy_(value)
        self._whole = self._replica.whole()

    # ---- what it showed ----

    def _result(self, count: int) -> ParityPass:
        steps, reference, task = self._steps, self._reference, self._task
        leads = self._leads and self._kind != "as run"
        return ParityPass(
            kind=self._kind,
            steps=len(steps.differences) if self._leads else count,
            shards=steps.shards,
            samples_per_rank=task.config.batch_size_per_rank,
            optimizer=task.config.optimizer,
            learning_rate=task.config.learning_rate,
            hash=hash_parameters(self._whole),
            unused=reference.unused(0),
            diverged=steps.diverged,
            share_of_first_update=_finite(steps.first.share),
            error_of_first_update=_finite(steps.first.error),
            error_of_whole_update=_finite(reference.error_of_all(self._whole)) if self._leads else None,
            differences=[_finite(difference) for difference in steps.differences],
            updates=[_finite(update) for update in steps.updates],
            wrong=steps.wrong,
            trainable=reference.trainable if leads else 0,
            untold=dict(reference.told_apart.untold) if leads else {},
            acted=reference.acted if leads else [],
            combined=self._combined,
            optimizer_steps=self._optimizer_steps,
            first_batches=reference.first_batches,
            shared_samples=reference.shared_samples,
            seconds=0.0,
        )


def _scaled(loss: Loss, scale: float) -> Loss:
    return lambda model, batch: loss(model, batch) * scale


def _first_noted(task: Task, replica: Replica, reference: Reference) -> Iterator[Batch]:
    """Yield the arm's batches; from an own loader, the first must equal the reference's.

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
    """Seed every layer by its index, if the replica holds only some of the layers.

    Raises:
        BackendError: the workload changes gradients, but this rank holds only those of its layers.
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


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


@contextmanager
def _restored(device: torch.device) -> Iterator[None]:
    """Restore the random generators after the block, and give freed memory back to the system."""
    with same_randomness(device):
        yield
    gc.collect()  # a wrapper and its hooks hold each other
    if device.type == "cuda":
        torch.cuda.empty_cache()
    # The allocator keeps freed memory for the gradients of every step (see schema/environment.py).
    ctypes.CDLL(None).malloc_trim(0)

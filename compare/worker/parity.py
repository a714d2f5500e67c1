"""Compare an arm with a single process on the same samples.

A new copy of the run's model trains through the arm's strategy. The reference, plain torch without a group,
takes the same steps in a single process. It computes the gradient of each shard separately, with that shard's
random numbers, buffers and state, and then averages the gradients. Before each step it takes over the arm's
parameters, but keeps the state of its own optimizer. So rounding does not grow from step to step, and the
model may have dropout and BatchNorm.

A proof has one or more passes. ``float64`` and ``float32`` are gates, named by their dtype, which an arm must
pass. The pass ``as run`` is not a gate. It shows how far the arm drifts from one process that trains on the
combined batch and takes over the arm's parameters only at its start. Rounding, dropout and BatchNorm all add
to this drift.

The gates train by plain SGD, which applies gradients as they are. Adam divides each gradient by its own size,
so one that is zero except for rounding moves its parameter as far as any other. The learning rate is not the
run's either, because with a tiny one every strategy would pass, and with a huge one none.

A clip may act in none of these steps, or in all of them. So a workload that changes gradients takes four more
steps, which all start from the parameters after the last one. All gradients are scaled down in two of them,
and only those of the first shard are scaled up in the other two.

The random generators and the memory are restored, so the training after a proof is not changed.

A run proves each arm before its first training. A later launch with the same start and end, bit for bit,
trained the same, so the proof holds for that launch too. Any other launch is proven after its training.
"""

from __future__ import annotations

import ctypes
import gc
import math
from collections.abc import Callable, Iterator
from time import monotonic

import torch
from torch import nn

from backends.base import BackendError, Batch, Group, MakeOptimizer, Replica
from compare.schema.job import PASSES, STEPS, Job
from compare.schema.parity import Fingerprint, ParityPass, PassKind, WrongStep, rounding_limit
from compare.worker.blocks import make_side
from compare.worker.compilation import compiled_for_proof
from compare.worker.own import tensors_of
from compare.worker.randomness import same_randomness
from compare.worker.reference import Reference, StepReference
from compare.worker.shards import copy_tensors, hash_tensors, scale_of, seed_layers, seed_step
from compare.worker.steps import StepRecord, differences, furthest_ratio, recorded_step
from compare.worker.task import Task
from compare.worker.watchdog import PassTimer, Watchdog
from compare.workload import WorkloadError

_LARGE_PARAMETERS = 4_000_000
"""Number of parameters above which a brief proof takes fewer steps.

Twenty steps of 20 million parameters take about 10 s, and 40 s over a slow network.
"""
_LEAST_STEPS = 3
"""Number of steps that are always compared; after them, the comparison ends if the reference diverges."""
_FEW_STEPS = 5
"""Number of steps in a brief pass with a large model.

All known faults show by the third step. DDP rebuilds its buckets after the first step, and Horovod reads
names from its cache from the second step on.
"""
_SCALES = (2.0**-14, 2.0**-27, 2.0**14, 2.0**27)
"""Factors of the gradients in the steps that show a clip; powers of two, to avoid rounding."""


def repeats_proven(job: Job, fingerprint: Fingerprint, group: Group) -> bool:
    """Return whether every rank's training equals that of the arm's proven launches, bit for bit.

    ``fingerprint`` has the hashes of this rank's training. All ranks must call this together.
    """
    differing = torch.tensor([float(fingerprint != job.proven.get(group.rank))], device=group.device)
    group.all_reduce_(differing)
    return not differing.item()


def prove_steps(
    job: Job, make_replica: Callable[..., Replica], task: Task, group: Group, watchdog: Watchdog
) -> list[ParityPass]:
    """Compare the steps of a copy of the model with those of a single process, pass by pass.

    All ranks must call this together. The list is empty for the control, which has no proof. A pass is short,
    so options that act late get other values, which the registry has (``while_proven``).
    """
    if not job.arm.traits.synchronises:
        return []
    options = job.arm.options_while_proven

    def make(model: nn.Module, make_optimizer: MakeOptimizer) -> Replica:
        return make_replica(model, make_optimizer, group, options)

    timer = PassTimer(watchdog, group, first_seconds=job.config.compile_limit_seconds)
    passes = []
    with compiled_for_proof(job.config):
        for kind in PASSES[job.proof]:
            with same_randomness(task.device):
                proof = Proof(make, task.for_proof(kind), kind, timer, compares=group.rank == 0)
                passes.append(proof.take(brief=job.proof == "brief", may_scale=job.arm.exact))
            del proof
            gc.collect()  # a wrapper and its hooks hold each other
            if task.device.type == "cuda":
                torch.cuda.empty_cache()
            # The allocator keeps freed memory for the gradients of every step (see schema/environment.py).
            ctypes.CDLL(None).malloc_trim(0)
    return passes


class Proof:
    """One pass of a proof, in which an arm and the reference train step by step.

    All ranks must make and take it together. Every rank takes the reference's first step, and compares its
    own first update with it. A rank that ``compares`` does so in all steps, and equal hashes extend its
    result to the others. ``task`` is the task of this pass, from ``Task.for_proof``.
    """

    def __init__(
        self,
        make_replica: Callable[[nn.Module, MakeOptimizer], Replica],
        task: Task,
        kind: PassKind,
        timer: PassTimer,
        *,
        compares: bool,
    ) -> None:
        self._timer, self._kind, self._begun = timer, kind, monotonic()
        timer.begin_step(0)
        timer.begin_passes(0)
        self._scale = 1.0
        model = task.build_model()
        self._parameters = list(model.parameters())
        if task.changes_gradients:
            self._scale_gradients_of_own_step()
        self._replica = make_replica(model, task.make_optimizer)
        task.prepare(self._replica)
        self._task = task.for_proof_of(self._replica)
        self._has_reference_step = task.workload.reference_step is not None
        # Each rank can go wrong by itself in a step that is the user's own.
        self._compares = compares or self._replica.takes_whole_step
        self._whole = self._replica.whole()
        drifts = kind == "as run"
        arguments = (self._task, self._replica, self._whole, timer)
        takes_users_step = self._replica.takes_whole_step and self._has_reference_step and not drifts
        self._reference = (
            StepReference(*arguments) if takes_users_step else Reference(*arguments, drifts=drifts)
        )
        _prepare_layers(self._replica, self._reference.model, self._task)
        batches = _checked_batches(self._task, self._replica, self._reference)
        self._side = make_side(self._replica, self._task, batches)
        self._shard_of_rank = self._reference.shard_of_rank
        self._shard, self._shards = self._task.shard_of(self._replica.shard)
        self._differences: list[float] = []
        self._updates: list[float] = []
        self._first_share, self._first_error = math.nan, math.nan
        self._wrong: WrongStep | None = None
        self._diverged = False
        self._optimizer_steps: list[int] = []
        self._combined: float | None = None

    def take(self, *, brief: bool = False, may_scale: bool = True) -> ParityPass:
        """Take ``STEPS`` steps of the arm and of the reference, and return how they compare.

        A ``brief`` pass of a large model takes ``_FEW_STEPS``, so that the launch starts soon. ``may_scale``
        allows further steps with scaled gradients, which show a clip. Arms that round gradients do
        without them, because half precision cannot hold all of these scales.
        """
        large = sum(parameter.numel() for parameter in self._parameters) > _LARGE_PARAMETERS
        count = _FEW_STEPS if brief and large else STEPS
        for step in range(count):
            self._step(step)
        for number, scale in enumerate(_SCALES if may_scale and self._can_scale() else (), start=count):
            self._step(number, scale)
            count += 1
        self._timer.wait_for_ranks()
        return self._result(count)

    def _step(self, step: int, scale: float = 1.0) -> None:
        """Take a step of the reference and a step of the arm, and compare them.

        All ranks wait for each other before the arm's step, because some take no step of the reference.
        """
        reference = self._reference
        kept = [p.detach().clone() for p in self._replica.model.parameters()] if scale != 1 else []
        self._timer.begin_step(step)
        if self._compares or step == 0:
            reference.start_from(self._whole)
            reference.step(step, scale)
        if step == 0:
            if self._replica.needs_every_gradient:
                reference.require_every_gradient()
            if self._compares and self._kind == "float64":
                self._timer.begin_passes(self._reference.shard_count)
                self._combined = reference.distance_of_combined() if self._task.is_own else None
        self._timer.wait_for_ranks()
        self._timer.begin_passes()
        record = self._train(step, scale)
        self._whole = self._replica.whole()
        if self._compares or step == 0:
            reference.add_error(self._whole)
            self._compare(step, record)
        if not self._compares:
            reference.drop_copies()
        if kept:
            # Each scaled step starts from the parameters at the end of the last plain one.
            copy_tensors(kept, self._replica.model.parameters())
            self._whole = self._replica.whole()

    def _compare(self, step: int, record: StepRecord) -> None:
        """Compare a step of the arm with the reference's, and explain the first one that is wrong."""
        whole, reference = self._whole, self._reference
        by_name = differences(whole, reference.model.parameters(), reference.largest_change)
        update = reference.relative_update()
        # NaN counts as the largest difference.
        parameter = max(by_name, key=lambda name: math.inf if math.isnan(by_name[name]) else by_name[name])
        difference = by_name[parameter]
        # With some models the training of a gate diverges. Then the steps before that prove the arm.
        self._diverged = self._diverged or (
            math.isnan(difference)
            and len(self._differences) >= _LEAST_STEPS
            and not all(bool(torch.isfinite(p).all()) for p in reference.model.parameters())
        )
        if self._diverged:
            return
        self._differences.append(difference)
        self._updates.append(update)
        if step == 0:
            self._first_share, self._first_error = reference.compare_updates(whole)
        if self._kind == "as run" or self._wrong:
            return
        limit = rounding_limit(self._kind, update, len(self._shard_of_rank))
        reference.tell_apart(limit)
        if not difference <= limit:
            wrong_count = sum(not size <= limit for size in by_name.values())
            self._wrong = WrongStep(
                step=step + 1,
                parameter=parameter,
                difference=_finite_or_none(difference),
                only=len(by_name) > 1 and wrong_count == 1,
                structure=_structure(whole, parameter, record) if reference.is_plain else "",
                rate=furthest_ratio((rate, reference.rate) for rate in record.rates.values()),
                **reference.explain(whole, step),
            )

    def _train(self, step: int, scale: float) -> StepRecord:
        """Take the arm's step, and return its record, which is empty unless the step is the user's own."""
        own_step = self._replica.takes_whole_step
        scale = scale_of(self._shard, scale)
        side, loss = self._side, self._side.loss
        if not own_step and scale != 1:
            side = side._replace(loss=lambda model, batch: loss(model, batch) * scale)
        self._scale = scale if own_step else 1.0
        seed_step(self._task.config, step, self._shard)
        if not own_step:
            side.train(1)
            return StepRecord([])
        with recorded_step(self._parameters) as record:
            side.train(1)
        self._optimizer_steps.append(record.optimizer_steps)
        return record

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
        if not self._task.changes_gradients or self._has_reference_step:
            return False
        held = self._replica.model.parameters()
        return not self._replica.takes_whole_step or list(map(id, held)) == list(map(id, self._parameters))

    # ---- the result ----

    def _result(self, count: int) -> ParityPass:
        reference, task = self._reference, self._task
        whole_error = reference.compare_updates(self._whole)[1] if self._compares else math.nan
        judges = self._compares and self._kind != "as run"
        return ParityPass(
            kind=self._kind,
            steps=len(self._differences) if self._compares else count,
            shards=self._shards,
            shard_of_rank=self._shard_of_rank if reference.shares_shards else [],
            samples_per_rank=task.config.batch_size_per_rank,
            optimizer=task.config.optimizer,
            learning_rate=task.config.learning_rate,
            hash=hash_tensors(self._whole.parameters()),
            unused=reference.unused(),
            diverged=self._diverged,
            share_of_first_update=_finite_or_none(self._first_share),
            error_of_first_update=_finite_or_none(self._first_error),
            error_of_whole_update=_finite_or_none(whole_error),
            differences=[_finite_or_none(difference) for difference in self._differences],
            updates=[_finite_or_none(update) for update in self._updates],
            wrong=self._wrong,
            trainable=reference.trainable if judges else 0,
            untold=reference.untold if judges else {},
            acted=reference.acted if judges else [],
            combined=self._combined,
            optimizer_steps=self._optimizer_steps,
            first_batches=reference.first_batches,
            shared_samples=reference.shared_samples,
            seconds=monotonic() - self._begun,
        )


def _structure(model: nn.Module, wrong_parameter: str, record: StepRecord) -> str:
    """Return why a wrong step is not one backward pass and one optimizer's step; empty if it is."""
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    moved = ["a parameter that does not train changes"] if wrong_parameter in frozen else []
    return ", ".join(filter(None, [record.structure, *moved]))


def _checked_batches(task: Task, replica: Replica, reference: Reference) -> Iterator[Batch]:
    """Yield the arm's batches; if the user has a loader, the first must equal that of the reference.

    Raises:
        WorkloadError: the user's loader yields other samples when it is called again.
    """
    index, count = task.shard_of(replica.shard)
    for number, batch in enumerate(task.batches((index, count))):
        if number == 0 and task.workload.loader and reference.shard_count == count:
            expected = reference.first_batches[index]
            if hash_tensors(tensors_of(batch)) != expected:
                raise WorkloadError(
                    "the loader yields other samples when it is called again. Its order may depend only on "
                    "its arguments and on torch's seed."
                )
        yield batch


def _prepare_layers(replica: Replica, reference: nn.Module, task: Task) -> None:
    """Seed every layer by its index, if the replica holds only some of the layers.

    Raises:
        BackendError: the replica holds only some layers, but the workload changes gradients.
    """
    if replica.first_layer is None:
        return
    if task.changes_gradients:
        raise BackendError(
            "the workload's before_step would see only the gradients of one rank's layers. Leave out "
            "before_step or this arm."
        )
    # One process draws the random numbers of all layers in turn, but a rank only those of its layers.
    seed_layers(reference, 0)
    seed_layers(replica.model, replica.first_layer)


def _finite_or_none(number: float) -> float | None:
    return number if math.isfinite(number) else None

"""Take one more step after the training, and compare it with a single process.

A proof compares the first steps of a copy of the model. This step is taken by the replica that was trained,
so it shows what begins or changes late: a hook, a schedule, a clip. The gradients that the optimizer gets are
compared with the mean gradient of a single process, and its learning rate with the schedule's. The training
is over, so its result does not change.

Rounding depends on the state in which the training ended, so the limit is derived from a measurement: how far
a single process in the run's precision is from the same process in float64.
"""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import msgspec
import torch
from torch import nn

from backends.base import Group, Replica
from compare.schema.arms import Arm
from compare.schema.job import STEPS
from compare.schema.parity import EndStep
from compare.worker.blocks import Side
from compare.worker.observed import buffers_of, unmoved
from compare.worker.randomness import same_randomness
from compare.worker.reference import Reference
from compare.worker.shards import Gradients, Shard, copy_tensors, seed_step
from compare.worker.steps import are_equal, furthest_ratio, largest, local_copies, recorded_step
from compare.worker.task import Task
from compare.worker.watchdog import PassTimer

_NOISE = 30.0
"""Factor by which an error may exceed the measured rounding, because other kernels round differently."""
_LEAST_LIMIT = 1e-5
"""Error that is always allowed, relative to the size of the gradient."""
_VISIBLE_UPDATE = 1e-4
"""Relative size of an update that is too large to be rounded away in float32."""
_LEAST_SIZE = 1e-4
"""Least norm by which a gradient's error is divided, relative to the model's largest gradient."""


def take_end_step(
    arm: Arm, side: Side, task: Task, group: Group, timer: PassTimer, *, steps: int
) -> EndStep | None:
    """Take one more step after ``steps`` steps, and compare it with a single process.

    All ranks must call this together. Only rank 0 compares, but every rank does if the step is the user's
    own. If nothing was compared, ``why_not`` has the reason. The result is None for the control.
    """
    if not arm.traits.synchronises:
        return None
    bend = _unseen_bend(task, steps) if side.replica.takes_whole_step else 0
    if why_not := _why_no_end_step(arm, task, side.replica):
        return EndStep(step=steps, why_not=why_not, unseen_bend=bend)
    with same_randomness(group.device):
        end = _EndStep(side, task, steps, timer, group=group).take()
        # Without this wait, other ranks would measure while rank 0 may still look for the cause.
        timer.wait_for_ranks()
    return msgspec.structs.replace(end, unseen_bend=bend)


def _why_no_end_step(arm: Arm, task: Task, replica: Replica) -> str:
    """Return why a step of this arm after its training cannot be compared; empty if it can."""
    own_reference = arm.traits.own_step and task.workload.reference_step
    reasons = {
        "an option rounds or compresses its gradients": not arm.exact,
        "its steps are not those of one process": not arm.same_training,
        "it averages parameters": not replica.averages_gradients,
        "its ranks hold different layers": arm.traits.in_layers,
        "its calls are compiled": task.config.compile,
        "its reference is a step of the user's own": own_reference,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def _unseen_bend(task: Task, steps: int) -> int:
    """Return the first step at which the schedule bends, if no compared step shows the bend; otherwise 0.

    The schedule bends where its factor differs from that of all compared steps: those of the proof, and the
    one after the training. If these have different factors, they show a bend.
    """
    seen = {task.factor_at(step) for step in (*range(STEPS), steps)}
    if len(seen) > 1:
        return 0
    return next((step for step in range(steps) if task.factor_at(step) not in seen), 0)


class _OptimizerInput(NamedTuple):
    """What the optimizers of one step got: gradients and learning rates, by the parameter's name."""

    gradients: dict[str, torch.Tensor]
    """Averaged gradients, before a clip; in a step of the user's own, after its clip."""
    rates: dict[str, float]
    optimizer_steps: int
    """Number of steps of the optimizer that stepped most often; 0 if no parameter moved."""
    changes_outside: bool = False
    """Whether trainable parameters changed outside of an optimizer's step."""


class _Gradients(NamedTuple):
    """Four gradients of one parameter, each as ``_as_float64`` returns it."""

    given: torch.Tensor
    """The gradient that the optimizer got."""
    exact: torch.Tensor
    """The mean gradient of a single process, computed in float64."""
    rounded: torch.Tensor
    """The mean gradient of a single process, computed in the run's precision."""
    alone: torch.Tensor
    """The gradient of this rank's shard, computed in the run's precision."""


class _EndStep:
    """The step of one rank after ``steps`` steps of training, and its comparison with a single process."""

    def __init__(self, side: Side, task: Task, steps: int, timer: PassTimer, *, group: Group) -> None:
        self._side, self._trained_task, self._steps = side, task, steps
        self._timer, self._group = timer, group
        self._replica: Replica = side.replica
        self._task = task.for_proof("as run")
        self._compares = group.rank == 0 or side.replica.takes_whole_step
        self._shard = self._task.shard_of(self._replica.shard)

    def take(self) -> EndStep:
        """Take the step, and return how it compares; all ranks must call this together."""
        whole = self._replica.whole()
        buffers = self._buffers_of_shards(whole)
        copy_tensors(buffers[self._shard[0]], self._replica.model.buffers())
        start = [parameter.detach().clone() for parameter in whole.parameters()]
        expected = self._mean_gradients(whole, buffers) if self._compares else []
        never_moved = unmoved(whole, self._trained_task.anew().build_model()) if self._compares else []
        self._timer.wait_for_ranks()
        self._timer.begin_passes()
        given = self._step()
        if given.optimizer_steps and self._update_is_missing(given, start):
            given = given._replace(optimizer_steps=0)
        if not self._compares:
            return self._not_compared("rank 0 compares it")
        if any(gradients is None for gradients in expected):
            return self._not_compared("before_step remembers earlier calls")
        exact, rounded = (gradients or [] for gradients in expected)
        if any(g is not None and not torch.isfinite(g).all() for g in [*exact, *rounded]):
            return self._not_compared("the training diverged")
        names = [name for name, _ in whole.named_parameters()]
        gradients = {
            name: _Gradients(*map(_as_float64, (given.gradients.get(name), *others)))
            for name, *others in zip(names, exact, rounded, self._alone, strict=True)
        }
        # A parameter that has moved was trained, so it must get a gradient even now.
        trained = {name for name in names if name in given.rates or name not in never_moved}
        compared = [name for name, mean in zip(names, exact, strict=True) if mean is not None]
        end = self._compare(given, gradients, [name for name in compared if name in trained])
        if end.error is not None and end.error <= end.limit:
            return end
        updated = [gradients[name] for name in names if name in given.gradients]
        if self._replica.takes_whole_step and _are_of_one_rank(updated):
            # The hashes of the ranks show later whether the parameters are averaged.
            return self._not_compared("each rank steps by its own gradients")
        why_not = self._why_no_reference(start, buffers) if self._trained_task.is_own else ""
        return self._not_compared(why_not) if why_not else end

    def _not_compared(self, why_not: str) -> EndStep:
        return EndStep(step=self._steps, why_not=why_not)

    def _buffers_of_shards(self, whole: nn.Module) -> list[list[torch.Tensor]]:
        """Return copies of the buffers of each shard's first rank; all ranks must call this together."""
        count = self._shard[1]
        if count == 1:
            return [[buffer.detach().clone() for buffer in whole.buffers()]]
        shards = self._task.shards_of(self._group.world_size)
        ranks = [shards.index(shard) for shard in range(count)]
        return [buffers_of(whole, self._group, rank) for rank in ranks]

    def _mean_gradients(self, whole: nn.Module, buffers: list[list[torch.Tensor]]) -> list[Gradients | None]:
        """Return the mean gradients of a single process twice: in float64, and in the run's precision.

        Both are None in a step of the user's own if ``before_step`` keeps a state, which a new one does not
        have. The gradients of this rank's shard are kept in ``_alone``.
        """
        means: list[Gradients | None] = []
        for task in (self._trained_task.for_proof("float64").for_proof_of(self._replica), self._task):
            reference = Reference(task, self._replica, whole, self._timer, drifts=False)
            reference.start_from(whole)
            reference.set_buffers(buffers)
            mean = reference.mean_gradients(self._steps)
            self._alone = reference.alone
            means.append(reference.clip_without_state(mean) if self._replica.takes_whole_step else mean)
        return means

    def _step(self) -> _OptimizerInput:
        """Take the step as the training would, and return its averaged gradients and its learning rates."""
        seed_step(self._task.config, self._steps, self._shard[0])
        side = self._side._replace(batches=iter(self._task.batches(self._shard)))
        given = self._step_of_user(side) if self._replica.takes_whole_step else self._step_of_arm(side)
        whole = {
            name: _gather(gradient, self._group.device) if hasattr(gradient, "full_tensor") else gradient
            for name, gradient in given.gradients.items()
        }
        return given._replace(gradients=whole)

    def _step_of_user(self, side: Side) -> _OptimizerInput:
        """Take a step of the user's own, and return what its optimizers got, as torch's hooks show."""
        names = {id(parameter): name for name, parameter in self._replica.model.named_parameters()}
        parameters = list(self._replica.model.parameters())
        start = local_copies(parameters)
        with recorded_step(parameters, keeps_gradients=True) as record:
            side.train(1)
        gradients = {names[one]: g for one, g in record.gradients.items() if one in names and g is not None}
        rates = {names[one]: rate for one, rate in record.rates.items() if one in names}
        return _OptimizerInput(gradients, rates, record.optimizer_steps, record.changes_outside(start))

    def _step_of_arm(self, side: Side) -> _OptimizerInput:
        """Take a step of Ringside's loop, and return the averaged gradients before the user's clip."""
        given = _OptimizerInput({}, {}, 1)

        def keep(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
            names = {id(parameter): name for name, parameter in model.named_parameters()}
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    given.gradients[name] = parameter.grad.detach().clone()
            if side.before_step:
                side.before_step(model, optimizers)
            for group in (group for optimizer in optimizers for group in optimizer.param_groups):
                names_of_group = (names[id(p)] for p in group["params"] if id(p) in names)
                given.rates.update(dict.fromkeys(names_of_group, float(group["lr"])))

        side._replace(before_step=keep).train(1)
        return given

    def _update_is_missing(self, given: _OptimizerInput, start: list[torch.Tensor]) -> bool:
        """Return whether no parameter moved, although one should have; all ranks must call this together."""
        whole, must_move = self._replica.whole(), False
        for (name, parameter), before in zip(whole.named_parameters(), start, strict=True):
            if not torch.equal(parameter, before):
                return False
            if name in given.gradients:
                size = given.rates.get(name, 0.0) * largest(given.gradients[name])
                must_move = must_move or size > _VISIBLE_UPDATE * largest(before)
        return must_move

    def _compare(self, given: _OptimizerInput, gradients: dict[str, _Gradients], names: list[str]) -> EndStep:
        """Compare the gradients of the named parameters, and the learning rates of all."""
        largest_norm = max((_norm(gradients[name].exact) for name in names), default=0.0)
        worst, error, limit, furthest, whole, along = 0.0, 0.0, _LEAST_LIMIT, 0.0, 0.0, 0.0
        for gradient, exact, rounded, alone in map(gradients.__getitem__, names):
            size = max(_norm(exact), _LEAST_SIZE * largest_norm) or 1.0
            allowed = _LEAST_LIMIT + _NOISE * _norm(rounded - exact) / size
            apart = _norm(gradient - exact) / size
            excess = math.inf if math.isnan(apart) else apart / allowed
            if excess > worst:
                worst, error, limit = excess, apart, allowed
            furthest = max(furthest, _norm(alone - exact) / size / allowed)
            whole, along = whole + float(exact.square().sum()), along + float((gradient * exact).sum())
        share = along / whole if whole else 1.0
        task = self._trained_task.anew()
        rates = task.rates_at(task.build_model(), self._steps)
        return EndStep(
            step=self._steps,
            error=error if math.isfinite(error) else None,
            limit=limit,
            alone=furthest * limit,
            share=share if math.isfinite(share) else 0.0,
            rate=furthest_ratio((rate, rates[name]) for name, rate in given.rates.items() if name in rates),
            optimizer_steps=given.optimizer_steps,
            changes_outside=given.changes_outside,
        )

    def _why_no_reference(self, start: list[torch.Tensor], buffers: list[list[torch.Tensor]]) -> str:
        """Return why a new model and loss are no reference for the trained ones; empty if they are.

        Both pairs compute the gradients of this rank's shard from the same parameters and buffers, and these
        gradients must be equal.
        """
        index, count = self._shard
        self._timer.begin_passes()
        try:
            trained = copy.deepcopy(self._replica.model)
        except Exception:  # noqa: BLE001 -- each model refuses in its own way; FSDP's by an assertion
            return "its model cannot be copied, so what the model remembers is not known"
        shard = Shard(self._task, index, count, trained, None)
        shard.fetch(self._steps, self._replica.parts)
        gradients = []
        for model, loss in ((shard.model, shard.task.loss), (trained, self._side.loss)):
            copy_tensors(start, model.parameters())
            copy_tensors(buffers[index], model.buffers())
            shard.model, shard.loss = model, loss
            self._timer.begin_passes()
            for parameter in model.parameters():
                parameter.grad = None
            seed_step(self._task.config, self._steps, index)
            gradients.append(shard.gradients())
        why_not = "the workload remembers something that a new call of its function does not know"
        return "" if are_equal(*gradients) else why_not


def _are_of_one_rank(gradients: list[_Gradients]) -> bool:
    """Return whether the optimizer got this rank's own gradients, as in a step that averages parameters."""
    apart = sum(float((of_one.given - of_one.alone).square().sum()) for of_one in gradients)
    whole = sum(float(of_one.alone.square().sum()) for of_one in gradients)
    return math.sqrt(apart) <= _NOISE * _LEAST_LIMIT * math.sqrt(whole)


def _norm(tensor: torch.Tensor) -> float:
    return float(tensor.norm())


def _gather(shard: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a whole gradient; its shards may lie in host memory, but ranks communicate on ``device``."""
    on_device: Any = shard.to(device)
    return on_device.full_tensor()


def _as_float64(gradient: torch.Tensor | None) -> torch.Tensor:
    """Return a gradient as a dense, real float64 tensor on the CPU, and None as a single zero."""
    if gradient is None:
        return torch.zeros(1, dtype=torch.float64)
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    real = torch.view_as_real(dense) if dense.is_complex() else dense
    return real.double().cpu()

"""Take one more step after the training, and compare it with a single process.

A proof compares the first steps of a copy. This step is taken by the run's own replica, so it shows what
begins or changes late: a hook, a schedule, a clip. The gradients that the optimizer is given are compared
with the mean gradient of a single process, and its learning rate with the schedule's. The training is over,
so its result does not change.

Rounding depends on the state in which the training ended, so the limit is derived from a measurement: how far
a single process in the run's precision is from the same process in float64.
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import msgspec
import torch
from torch import nn

from backends.base import Group, Replica
from compare.schema.arms import Arm
from compare.schema.job import STEPS
from compare.schema.parity import EndStep
from compare.worker.blocks import Side
from compare.worker.pace import Pace
from compare.worker.randomness import same_randomness
from compare.worker.reference import Reference
from compare.worker.shards import Gradients, Shard, seed_step
from compare.worker.sketch import unmoved
from compare.worker.step_record import copies, ratio_of, recorded_step
from compare.worker.task import Task

_NOISE = 30.0
"""Factor by which an error may exceed the measured rounding, since kernels round differently."""
_LEAST_LIMIT = 1e-5
_MOVES = 1e-4
"""Relative size of an update that is too large to be rounded away in float32."""
_LEAST_SIZE = 1e-4
"""Least norm by which a gradient's error is divided, relative to the model's largest gradient."""


def why_no_end_step(arm: Arm, task: Task, replica: Replica) -> str:
    """Return why an arm takes no comparable step after its training; empty if it does."""
    reasons = {
        "its gradients are rounded or compressed by option": not arm.exact,
        "its steps are not those of one process": not arm.same_training,
        "it averages parameters": not replica.averages_gradients,
        "its ranks hold different layers": arm.traits.in_layers,
        "its calls are compiled": task.config.compile,
        "its reference is a step of the user's own": arm.traits.own_step and task.has_reference_step,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def take_end_step(arm: Arm, own: Side, task: Task, steps: int, pace: Pace, *, group: Group) -> EndStep:
    """Take one more step after ``steps`` steps, and compare it with a single process. Collective.

    Only rank 0 compares, but every rank does if the step is the user's own. If nothing was compared, the
    result has the reason in ``why_not``.
    """
    bend = _unseen_bend(task, steps) if own.replica.takes_whole_step else 0
    if why_not := why_no_end_step(arm, task, own.replica):
        return EndStep(step=steps, why_not=why_not, unseen_bend=bend)
    with same_randomness(group.device):
        end = _EndStep(own, task, steps, pace, group=group).take()
    return msgspec.structs.replace(end, unseen_bend=bend)


def _unseen_bend(task: Task, steps: int) -> int:
    """Return the first step whose factor in the schedule no compared step has; 0 if there is none.

    Also 0 if the compared steps themselves have several factors.
    """
    seen = {task.factor_at(step) for step in (*range(STEPS), steps)}
    if len(seen) > 1:
        return 0
    return next((step for step in range(steps) if task.factor_at(step) not in seen), 0)


class _Given(NamedTuple):
    """The gradients and learning rates that the optimizers of one step were given, by parameter name."""

    gradients: dict[str, torch.Tensor]
    """Averaged gradients; those of a step of the user's own are taken after its clip."""
    rates: dict[str, float]
    optimizer_steps: int
    """Steps of the busiest optimizer; 0 if no parameter moved."""
    changes_outside: bool = False
    """Whether trainable parameters changed outside of an optimizer's step."""


class _Sizes(NamedTuple):
    """The error of a gradient and its limit, both relative to the gradient's norm."""

    error: float
    limit: float

    @property
    def excess(self) -> float:
        return math.inf if math.isnan(self.error) else self.error / self.limit


class _EndStep:
    def __init__(self, own: Side, task: Task, steps: int, pace: Pace, *, group: Group) -> None:
        self._own, self._live, self._steps, self._pace, self._group = own, task, steps, pace, group
        self._replica: Replica = own.replica
        self._task = task.for_end()
        self._leads = group.rank == 0 or own.replica.takes_whole_step
        self._unmoved: list[str] = []

    def take(self) -> EndStep:
        end = self._take()
        # Without this wait, other ranks would measure while rank 0 may still look for the cause.
        self._meet()
        return end

    def _take(self) -> EndStep:
        whole = self._replica.whole()
        buffers = self._buffers(whole)
        start = [parameter.detach().clone() for parameter in whole.parameters()]
        expected = self._expected(whole, buffers) if self._leads else []
        if self._leads:
            self._unmoved = unmoved(whole, self._live.anew().build_model())
        self._meet()
        self._pace.note()
        given = self._step()
        if given.optimizer_steps and self._stands(given, start):
            given = given._replace(optimizer_steps=0)
        if not self._leads:
            return EndStep(step=self._steps, why_not="rank 0 compares it")
        if any(gradients is None for gradients in expected):
            return EndStep(step=self._steps, why_not="before_step remembers what it did before")
        exact, rounded = (gradients or [] for gradients in expected)
        if any(g is not None and not torch.isfinite(g).all() for g in [*exact, *rounded]):
            return EndStep(step=self._steps, why_not="the training diverged")
        names = [name for name, _ in whole.named_parameters()]
        end = self._compare(
            given, dict(zip(names, exact, strict=True)), dict(zip(names, rounded, strict=True))
        )
        wrong = end.error is None or end.error > end.limit
        if wrong and self._steps_alone(given, names):
            # The hashes of the ranks show later whether the parameters are averaged.
            return EndStep(step=self._steps, why_not="each rank steps by its own gradients")
        if wrong and self._live.is_own and (why_not := self._why_no_measure(start, buffers)):
            return EndStep(step=self._steps, why_not=why_not)
        return end

    def _buffers(self, whole: nn.Module) -> list[list[torch.Tensor]]:
        """Return for each shard the buffers of its model. Collective."""
        if self._replica.shard[1] == 1:
            return [[buffer.detach().clone() for buffer in whole.buffers()]]
        return _buffers_of_all(whole, self._group)

    def _meet(self) -> None:
        self._pace.meet(self._group.world_size if self._replica.takes_whole_step else 1)

    def _expected(self, whole: nn.Module, buffers: list[list[torch.Tensor]]) -> list[Gradients | None]:
        """Return the mean gradients of one process, in float64 and in the run's precision.

        They are None if ``before_step`` keeps a state, because a new ``before_step`` does not have it.
        ``_alone`` becomes the gradients of this rank's shard.
        """
        found: list[Gradients | None] = []
        for task in (self._live.for_proof("float64").for_proof_of(self._replica), self._task):
            reference = Reference(task, self._replica, whole, self._pace, drifts=False)
            reference.anchor(whole)
            reference.give_buffers(buffers)
            mean = reference.mean_gradients(self._steps)
            self._alone = reference.alone
            found.append(reference.changed(mean) if self._replica.takes_whole_step else mean)
        return found

    def _step(self) -> _Given:
        """Take the step as the training does, and return what its optimizers are given."""
        seed_step(self._task.config, self._steps, self._replica.shard[0])
        side = self._own._replace(batches=iter(self._task.batches(self._replica.shard)))
        given = self._step_of_user(side) if self._replica.takes_whole_step else self._step_of_arm(side)
        whole = {
            name: gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
            for name, gradient in given.gradients.items()
        }
        return given._replace(gradients=whole)

    def _step_of_user(self, side: Side) -> _Given:
        """Take a step of the user's own; torch's hooks show what its optimizers are given."""
        names = {id(parameter): name for name, parameter in self._replica.model.named_parameters()}
        parameters = list(self._replica.model.parameters())
        start = copies(parameters)
        with recorded_step(parameters, gradients=True) as record:
            side.train(1)
        gradients = {names[one]: g for one, g in record.gradients.items() if one in names and g is not None}
        rates = {names[one]: rate for one, rate in record.rates.items() if one in names}
        return _Given(gradients, rates, record.optimizer_steps, record.changes_outside(start))

    def _step_of_arm(self, side: Side) -> _Given:
        """Take a step of Ringside's own loop, and note the averaged gradients before the user's clip."""
        given = _Given({}, {}, 1)

        def keep(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
            names = {id(parameter): name for name, parameter in model.named_parameters()}
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    given.gradients[name] = parameter.grad.detach().clone()
            if side.before_step:
                side.before_step(model, optimizers)
            for group in (group for optimizer in optimizers for group in optimizer.param_groups):
                given.rates.update(
                    {names[id(p)]: float(group["lr"]) for p in group["params"] if id(p) in names}
                )

        side._replace(before_step=keep).train(1)
        return given

    def _stands(self, given: _Given, start: list[torch.Tensor]) -> bool:
        """Return whether no parameter moved, although some should have moved beyond rounding. Collective."""
        whole, far = self._replica.whole(), False
        for (name, parameter), before in zip(whole.named_parameters(), start, strict=True):
            if not torch.equal(parameter, before):
                return False
            if name in given.gradients:
                size = given.rates.get(name, 0.0) * _largest(given.gradients[name])
                far = far or size > _MOVES * _largest(before)
        return far

    def _steps_alone(self, given: _Given, names: list[str]) -> bool:
        """Return whether the user's step applies this rank's own gradients, as averaging parameters does."""
        alone = dict(zip(names, self._alone, strict=True))
        pairs = [(_plain(gradient), _plain(alone.get(name))) for name, gradient in given.gradients.items()]
        apart = sum(float(_minus(one, other).square().sum()) for one, other in pairs)
        whole = sum(float(_minus(other, None).square().sum()) for _, other in pairs)
        return self._replica.takes_whole_step and math.sqrt(apart) <= _NOISE * _LEAST_LIMIT * math.sqrt(whole)

    def _compare(
        self,
        given: _Given,
        exact: dict[str, torch.Tensor | None],
        rounded: dict[str, torch.Tensor | None],
    ) -> EndStep:
        # A parameter that has moved trained once, so it must be given a gradient even now.
        names = [
            name
            for name, gradient in exact.items()
            if gradient is not None and (name in given.rates or name not in self._unmoved)
        ]
        alone = dict(zip(exact, self._alone, strict=True))
        found, right, near, lone = (
            {name: _plain(its.get(name)) for name in names}
            for its in (given.gradients, exact, rounded, alone)
        )
        largest = max((float(g.norm()) for g in right.values() if g is not None), default=0.0)
        worst, furthest = _Sizes(0.0, _LEAST_LIMIT), 0.0
        for name in names:
            size = max(float(_minus(right[name], None).norm()), _LEAST_SIZE * largest) or 1.0
            limit = _LEAST_LIMIT + _NOISE * float(_minus(near[name], right[name]).norm()) / size
            error = _Sizes(float(_minus(found[name], right[name]).norm()) / size, limit)
            worst = max(worst, error, key=lambda one: one.excess)
            furthest = max(furthest, float(_minus(lone[name], right[name]).norm()) / size / limit)
        dot = sum(float((_minus(found[name], None) * _minus(right[name], None)).sum()) for name in names)
        whole = sum(float(_minus(right[name], None).square().sum()) for name in names)
        share = dot / whole if whole else 1.0
        return EndStep(
            step=self._steps,
            error=worst.error if math.isfinite(worst.error) else None,
            limit=worst.limit,
            alone=furthest * worst.limit,
            share=share if math.isfinite(share) else 0.0,
            rate=self._rate(given.rates),
            optimizer_steps=given.optimizer_steps,
            changes_outside=given.changes_outside,
        )

    def _rate(self, rates: dict[str, float]) -> float:
        """Return a parameter's learning rate over the schedule's; the ratio that is furthest from 1."""
        task = self._live.anew()
        model = task.build_model()
        expected = task.rates_at(model, self._steps)
        ratios = [ratio_of(rate, expected[name]) for name, rate in rates.items() if name in expected]
        return max(ratios, key=lambda ratio: abs(ratio - 1), default=1.0)

    def _why_no_measure(self, start: list[torch.Tensor], buffers: list[list[torch.Tensor]]) -> str:
        """Return why a new model and loss are no reference for those of the training; empty if they are.

        Both compute the gradients of this rank's shard from the same parameters and buffers, and the
        gradients must be equal.
        """
        index, count = self._replica.shard
        self._pace.note()
        try:
            live = copy.deepcopy(self._replica.model)
        except Exception:  # noqa: BLE001 -- each model refuses in its own way; FSDP's by an assertion
            return "its model cannot be copied, so what it remembers is not known"
        shard = Shard(self._task, index, count, live, None)
        shard.fetch(self._task.config.accumulate, self._replica.parts)
        gradients = []
        for model, loss in ((shard.model, shard.task.loss), (live, self._own.loss)):
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), start, strict=True):
                    parameter.copy_(value)
                for buffer, value in zip(model.buffers(), buffers[index] if buffers else [], strict=True):
                    buffer.copy_(value)
            shard.model, shard.loss = model, loss
            self._pace.note()
            for parameter in model.parameters():
                parameter.grad = None
            seed_step(self._task.config, self._steps, index)
            gradients.append(shard.gradients())
        pairs = [(_plain(one), _plain(other)) for one, other in zip(*gradients, strict=True)]
        same = all(_largest(_minus(one, other)) == 0 for one, other in pairs)
        return "" if same else "the workload remembers what a new call of it does not"


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _plain(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """Return a gradient as a dense, real float64 tensor on the CPU; None stays None."""
    if gradient is None:
        return None
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    real = torch.view_as_real(dense) if dense.is_complex() else dense
    return real.double().cpu()


def _minus(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor:
    if one is None:
        return torch.zeros(1, dtype=torch.float64) if other is None else -other
    return one if other is None else one - other


def _buffers_of_all(model: nn.Module, group: Group) -> list[list[torch.Tensor]]:
    """Return the buffers of every rank's model, by rank; empty if the model has none. Collective.

    Buffers are sent as bytes, because not every library carries every dtype.
    """
    held = [buffer.detach() for buffer in model.buffers()]
    if not any(buffer.numel() for buffer in held):
        return []
    own = torch.cat([b.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8) for b in held])
    found = []
    for root in range(group.world_size):
        sent = own.clone()
        group.broadcast_(sent, root)
        parts = sent.split([b.numel() * b.element_size() for b in held])
        found.append([part.clone().view(b.dtype).view(b.shape) for part, b in zip(parts, held, strict=True)])
    return found

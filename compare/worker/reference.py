"""Train the reference of a proof: a single process that takes the same steps, shard by shard."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any, ClassVar

import torch
from torch import nn

from backends.base import BackendError, Batch, Replica
from compare.schema.parity import WrongKind
from compare.worker.randomness import states_of_generators
from compare.worker.shards import Gradients, Shard, combine, copy_tensors, mean_of, scale_of, seed_step
from compare.worker.steps import (
    MOST_EXPLAINED,
    are_equal,
    differences,
    distance,
    dot,
    explain,
    joined,
    largest,
    relative,
)
from compare.worker.task import Task
from compare.worker.watchdog import Pace

_CLEARLY = 10.0
"""Factor by which a wrong step must exceed the limit, because rounding may reduce the distance."""


class Reference:
    """The arm's training in a single process, shard by shard.

    If it ``drifts``, it trains on the combined batch, and takes over the arm's parameters only at its start.

    A proof shows nothing where a wrong step has the same result as the right one, because every gradient is
    zero, for example, or because all ranks have the same samples. So each step is compared with three wrong
    ones. ``alone`` takes this shard's gradient in place of the mean, ``sum`` adds up the gradients of all
    shards, and ``none`` changes nothing. A parameter is told apart from a wrong step if, in one or more steps
    of the proof, its distance from the right one is far beyond the limit of the gate.
    """

    is_plain: ClassVar[bool] = True
    """Whether a step is one backward pass of each shard's loss, and one step of the optimizer."""

    def __init__(self, task: Task, replica: Replica, start: nn.Module, pace: Pace, *, drifts: bool) -> None:
        """Make a model and batches for each shard of a replica.

        All models start with the parameters and buffers of ``start``. ``pace`` is notified of every pass.
        """
        index, count = (0, 1) if drifts else replica.shard
        self.acted: list[bool] = []
        """Whether ``before_step`` changed a gradient, for each step; empty if it never can."""
        self.alone: Gradients = []
        """The gradients of this rank's shard in the latest step."""
        self._drifts, self._index, self._pace = drifts, index, pace
        self._passes = replica.shard[1] if drifts else 1
        own = self._make_shard(task, index, count, start)
        self._shards = [
            own if place == index else self._make_shard(task, place, count, start, own.model)
            for place in range(count)
        ]
        self._task, self.model = own.task, own.model
        self._optimizer = self._task.make_optimizer(list(own.model.parameters()))
        self._before_step = self._task.before_step()
        self._clip = task.anew().before_step() if task.changes_gradients else None
        self._parts: Callable[[Batch], list[Batch]] = (lambda batch: [batch]) if drifts else replica.parts
        self._broadcasts = replica.broadcasts_buffers
        names = [name for name, p in own.model.named_parameters() if p.requires_grad]
        self.trainable = len(names)
        kinds: tuple[WrongKind, ...] = ("alone", "sum", "none") if count > 1 else ("none",)
        self.untold: dict[WrongKind, list[str]] = {kind: list(names) for kind in kinds}
        """For each kind of wrong step, the parameters that no step has told apart from it so far."""
        self._right: Gradients = []
        self._wrong: dict[WrongKind, Gradients] = {}
        self._mean: Gradients = []
        self._gradients: list[Gradients] = []
        self._keeps = sum(p.numel() for p in own.model.parameters()) * (count + 2) <= MOST_EXPLAINED
        self.largest_change = 0.0
        """Largest finite change of a number in the latest step."""
        self._start: list[torch.Tensor] = []
        self._before: list[torch.Tensor] = []
        self._anchor: list[torch.Tensor] = []
        self._uses: dict[str, int] = {}
        self._errors: list[torch.Tensor] = []

    def _make_shard(
        self, task: Task, index: int, count: int, start: nn.Module, shared: nn.Module | None = None
    ) -> Shard:
        self._pace.note(0)
        return Shard(task, index, count, start, shared)

    @property
    def shard_count(self) -> int:
        """Return how many shards the reference has; one if it drifts."""
        return len(self._shards)

    @property
    def rate(self) -> float:
        """Return the learning rate of the latest step, from the optimizer's first group."""
        return float(self._optimizer.param_groups[0]["lr"])

    @torch.no_grad()
    def anchor(self, found: nn.Module) -> None:
        """Start the next step from the parameters and buffers of the arm's model.

        Models of other shards keep their own buffers and frozen parameters. If the arm broadcasts buffers,
        they get those of the first shard. If the reference drifts, only the first call has an effect.
        """
        if self._drifts and self._start:
            return
        copy_tensors(found.parameters(), self.model.parameters())
        self._before, self._anchor = self._anchor, [p.detach().clone() for p in self.model.parameters()]
        self._start = self._start or self._anchor
        copy_tensors(found.buffers(), self.model.buffers())
        for shard in self._shards[1:] if self._broadcasts else []:
            copy_tensors(self._shards[0].model.buffers(), shard.model.buffers())

    def step(self, step: int, scale: float = 1.0) -> None:
        """Take a step, counted from 0, by the mean of the shards' gradients, scaled as in ``scale_of``."""
        mean = self.mean_gradients(step, scale)
        if self._before_step:
            _give(self.model, _cloned(mean))
            self._before_step(self.model, [self._optimizer])
            self._right = _cloned([p.grad for p in self.model.parameters()])
            if self._task.changes_gradients:
                self.acted.append(not are_equal(self._right, mean))
        else:
            self._right = mean
        self._wrong = {} if self._drifts else self._wrong_gradients(mean)
        _give(self.model, self._right)
        self._optimizer.step()
        _give(self.model, [None] * len(mean))
        self._note_largest_change()

    def give_buffers(self, buffers: list[list[torch.Tensor]]) -> None:
        """Copy the buffers of each shard into its model; an empty list changes nothing."""
        for shard, its in zip(self._shards, buffers, strict=False):
            copy_tensors(its, shard.model.buffers())

    def changed(self, gradients: Gradients) -> Gradients | None:
        """Return gradients as ``before_step`` changes them; None if earlier gradients affect the result."""
        once = self._clipped(gradients)
        self._clipped([None if gradient is None else gradient * 3 for gradient in gradients])
        return once if are_equal(once, self._clipped(gradients)) else None

    def mean_gradients(self, step: int, scale: float = 1.0) -> Gradients:
        """Fetch the batches of a step, and return the mean of all shards' gradients."""
        gradients = []
        for index, shard in enumerate(self._shards):
            self._pace.note(self._passes)
            shard.fetch(step, self._parts)
            gradients.append(shard.gradients(scale_of(index, scale), dense=not self._drifts))
        if step == 0:
            uses = (sum(g is not None for g in its) for its in zip(*gradients, strict=True))
            named = zip(self.model.named_parameters(), uses, strict=True)
            self._uses = {name: count for (name, p), count in named if p.requires_grad}
        self._mean = mean = mean_of(gradients)
        self._gradients = gradients if self._keeps or self.shard_count == 1 else []
        self.alone = gradients[self._index]
        return mean

    def _wrong_gradients(self, mean: Gradients) -> dict[WrongKind, Gradients]:
        """Return the gradients of each wrong step that is not yet told apart from the right one."""
        if not any(self.untold.values()):
            return {}
        count = self.shard_count
        made: dict[WrongKind, Gradients] = {
            "alone": self.alone,
            "sum": [None if g is None else g * count for g in mean],
            "none": [None] * len(mean),
        }
        wrong = {kind: made[kind] for kind, names in self.untold.items() if names}
        return {kind: given if kind == "none" else self._clipped(given) for kind, given in wrong.items()}

    def _clipped(self, gradients: Gradients) -> Gradients:
        if not self._clip:
            return gradients
        _give(self.model, _cloned(gradients))
        self._clip(self.model, [])
        return [p.grad for p in self.model.parameters()]

    @torch.no_grad()
    def tell_apart(self, limit: float) -> None:
        """Note which parameters differ between the latest step and a wrong one by far more than a limit."""
        rate = abs(self.rate) if self.is_plain else 1.0  # another step is compared by its parameters
        for kind, wrong in self._wrong.items():
            far = set()
            for (name, p), one, other in zip(self.model.named_parameters(), self._right, wrong, strict=True):
                apart = relative(rate * distance(one, other), p, least=self.largest_change)
                if _CLEARLY * limit < apart < math.inf:
                    far.add(name)
            self.untold[kind] = [name for name in self.untold[kind] if name not in far]

    @property
    def first_batches(self) -> list[str]:
        """Return the SHA-256 of each shard's first batch; empty unless the loader is the user's own."""
        return [shard.first_batch for shard in self._shards if shard.first_batch]

    @property
    def shared_samples(self) -> float:
        """Return the largest part of a shard's samples, from 0 to 1, that an earlier shard has too."""
        pairs = combinations([shard.samples for shard in self._shards], 2)
        return max((len(one & other) / len(other) for one, other in pairs if other), default=0.0)

    def unused(self) -> list[str]:
        """Return the names of the parameters that got no gradient from any shard."""
        return [name for name, count in self._uses.items() if not count]

    def require_every_gradient(self) -> None:
        """Require that every parameter got a gradient from every shard.

        Raises:
            BackendError: names those that did not.
        """
        few = [name for name, count in self._uses.items() if 0 < count < self.shard_count]
        for where, names in (("on any rank", self.unused()), ("on some ranks", few)):
            if names:
                raise BackendError(
                    f"these parameters take no part in the loss {where}: {', '.join(names)}. This arm cannot "
                    "average them. Leave them out of the model, set their requires_grad to False, or use "
                    "ddp:find_unused_parameters=true."
                )

    def update(self) -> float:
        """Return the largest number of this step's update, relative to the largest of its parameter."""
        return max(differences(self.model, self._anchor, self.largest_change).values(), default=0.0)

    @torch.no_grad()
    def _note_largest_change(self) -> None:
        changes = [largest(p - a) for p, a in zip(self.model.parameters(), self._anchor, strict=True)]
        self.largest_change = max((change for change in changes if math.isfinite(change)), default=0.0)

    def explain(self, found: nn.Module, step: int) -> dict[str, Any]:
        """Return fields of the ``WrongStep`` of the arm: its parts, and whether the workload hides a state.

        Both took the step from the same parameters, by plain SGD. The parts are left out if the gradients
        were not kept, or if a number is not finite. A step of the user's own for one process has no parts.
        """
        if not self.is_plain:
            return {}
        fields: dict[str, Any] = {"uncarried": not self._is_carried(step)}
        if not self._keeps or not self.rate:
            return fields

        def moved(start: Iterable[torch.Tensor], end: Iterable[torch.Tensor]) -> torch.Tensor:
            return joined(s - e for s, e in zip(start, end, strict=True)) / self.rate

        update, right = (moved(self._anchor, model.parameters()) for model in (found, self.model))
        if not bool(torch.isfinite(update + right).all()):
            return fields
        zeros = [torch.zeros_like(parameter) for parameter in self.model.parameters()]
        shards = [
            joined(zero if g is None else g for zero, g in zip(zeros, its, strict=True))
            for its in self._gradients
        ]
        before = moved(self._before, self._anchor) if self._before else None
        return fields | explain(update, right, torch.stack(shards), before)

    def _is_carried(self, step: int) -> bool:
        """Return whether two new models of the task have the same gradients.

        If not, something outside the model keeps a state: a global of the user's file, or a closure that a
        new call of the factory does not make anew.
        """
        gradients = []
        for _ in range(2):
            self._pace.note()
            shard = Shard(self._task, self._index, self.shard_count, self.model, None)
            shard.parts = self._shards[self._index].parts
            seed_step(self._task.config, step, self._index)
            gradients.append(shard.gradients())
        apart = (distance(one, other) for one, other in zip(*gradients, strict=True))
        return all(size == 0 or math.isnan(size) for size in apart)

    def distance_of_combined(self) -> float | None:
        """Return the distance of the first mean gradient from the gradient of the combined batch.

        It is relative to the norm of the mean. None if dropout, BatchNorm or the form of the batches prevents
        a comparison, or if there is only one shard.
        """
        batch = combine([shard.taken for shard in self._shards], self._task.config.batch_size_per_rank)
        if batch is None or self.shard_count == 1 or not self._start or not self._mean:
            return None
        shard = Shard(self._task, 0, self.shard_count, self.model, None)
        copy_tensors(self._start, shard.model.parameters())
        shard.parts = [batch]
        buffers = [buffer.clone() for buffer in shard.model.buffers()]
        seed_step(self._task.config, 0, 0)
        generators = states_of_generators()
        found = shard.gradients()
        draws = generators != states_of_generators()
        if draws or any(not torch.equal(b, k) for b, k in zip(shard.model.buffers(), buffers, strict=True)):
            return None
        pairs = [(f, m) for f, m in zip(found, self._mean, strict=True) if f is not None and m is not None]
        whole = dot((m, m) for _, m in pairs)
        return math.sqrt(dot((f - m, f - m) for f, m in pairs) / whole) if whole else None

    def drop_start(self) -> None:
        """Free the copies of earlier parameters, after which no update can be compared."""
        self._start, self._before, self._anchor, self._errors = [], [], [], []

    @torch.no_grad()
    def add_error(self, found: nn.Module) -> None:
        """Add the arm's difference after this step to the sum over all steps."""
        self._errors = self._errors or [torch.zeros_like(p) for p in self.model.parameters()]
        for total, f, e in zip(self._errors, found.parameters(), self.model.parameters(), strict=True):
            total.add_(f).sub_(e)

    @torch.no_grad()
    def compare_updates(self, found: nn.Module) -> tuple[float, float]:
        """Compare the sum of the arm's updates so far with the sum of the right ones.

        ``add_error`` must have been called after each of these steps.

        Returns:
            The component along the right sum, and the distance from it, both over its size by Euclidean
            norms. A component of 1 is right, 0 is no update, and the number of ranks shows a sum in place of
            the mean. Both are NaN if the right sum is zero.
        """
        apart = self._errors
        right = [f - s - a for f, s, a in zip(found.parameters(), self._start, apart, strict=True)]
        whole = dot((r, r) for r in right)
        if not whole:
            return math.nan, math.nan
        along = dot((r + a, r) for r, a in zip(right, apart, strict=True))
        return along / whole, math.sqrt(dot((a, a) for a in apart) / whole)


class StepReference(Reference):
    """A reference that takes the user's own step for one process, `Workload.reference_step`.

    A workload has one if a step is more than a backward pass and an update. The step takes the batches of all
    ranks. It is compared with two wrong steps: one that takes only this rank's batch, and one that changes
    nothing.
    """

    is_plain = False

    def __init__(self, task: Task, replica: Replica, start: nn.Module, pace: Pace) -> None:
        super().__init__(task, replica, start, pace, drifts=False)
        index, count = replica.shard
        self._take = _step_of(self._shards[index])
        self._other = self._make_shard(task, index, count, start)
        self._take_alone = _step_of(self._other)
        self.untold.pop("sum", None)

    def step(self, step: int, scale: float = 1.0) -> None:
        """Take a step, counted from 0; ``scale`` has no effect, because the step has its own losses."""
        del scale
        self._pace.note(self.shard_count)
        for shard in self._shards:
            shard.fetch(step, self._parts)
        self._take([shard.taken[0] for shard in self._shards])
        self._right = list(self.model.parameters())
        self._wrong = self._wrong_parameters() if any(self.untold.values()) else {}
        self._note_largest_change()

    def _wrong_parameters(self) -> dict[WrongKind, list[torch.Tensor | None]]:
        """Return the parameters after each wrong step."""
        copy_tensors(self._anchor, self._other.model.parameters())
        self._pace.note()
        self._take_alone([self._shards[self._index].taken[0]])
        wrong: dict[WrongKind, list[torch.Tensor | None]] = {
            "alone": list(self._other.model.parameters()),
            "none": list(self._anchor),
        }
        return {kind: wrong[kind] for kind in self.untold}


def _cloned(gradients: Gradients) -> Gradients:
    return [None if gradient is None else gradient.clone() for gradient in gradients]


def _give(model: nn.Module, gradients: Gradients) -> None:
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient


def _step_of(shard: Shard) -> Callable[[list[Batch]], object]:
    make = shard.task.workload.reference_step
    assert make  # noqa: S101 -- the proof chose this class by it
    return make(shard.model, shard.task.make_optimizer)

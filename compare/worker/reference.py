"""Train the reference of a proof: a single process that takes the same steps, shard by shard."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from typing import Any, ClassVar

import torch
from torch import nn

from backends.base import BackendError, Batch, Replica
from compare.schema.parity import WrongKind
from compare.worker.difference import (
    MOST_EXPLAINED,
    Taken,
    Update,
    are_equal,
    differences,
    distance,
    dot,
    explain,
    joined,
    largest,
    relative,
)
from compare.worker.own import tensors_of
from compare.worker.randomness import states_of_generators
from compare.worker.shards import (
    Gradients,
    Shard,
    combine,
    copy_tensors,
    hash_samples,
    hash_tensors,
    mean_of,
    scale_of,
    seed_step,
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
        self.first_batches: list[str] = []
        """SHA-256 of each shard's first batch; empty unless the loader is the user's own."""
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
        self._samples: list[set[str]] = []
        self._largest_change = 0.0
        self._start: list[torch.Tensor] = []
        self._before: list[torch.Tensor] = []
        self._anchor: list[torch.Tensor] = []
        self._uses: dict[str, int] = {}
        self._apart: list[torch.Tensor] = []

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
        self._largest_change = self._find_largest_change()

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
            # Random changes of samples draw from these generators, too.
            seed_step(self._task.config, step, index)
            shard.fetch(self._task.config.accumulate, self._parts)
            if self._task.workload.loader:
                self._note_samples(index, shard.taken)
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
                apart = relative(rate * distance(one, other), p, least=self._largest_change)
                if _CLEARLY * limit < apart < math.inf:
                    far.add(name)
            self.untold[kind] = [name for name in self.untold[kind] if name not in far]

    def _note_samples(self, shard: int, batches: list[Batch]) -> None:
        """Note the hash of a shard's first batch, and the hashes of all its samples."""
        if shard == len(self.first_batches):
            self.first_batches.append(hash_tensors(tensors_of(batches[0])))
            self._samples.append(set())
        self._samples[shard].update(sample for batch in batches for sample in hash_samples(batch))

    @property
    def shared_samples(self) -> float:
        """Return the largest part of a shard's samples, from 0 to 1, that an earlier shard has too."""
        pairs = combinations(self._samples, 2)
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

    @torch.no_grad()
    def update(self) -> float:
        """Return the largest number of this step's update, relative to the largest of its parameter."""
        pairs = zip(self.model.parameters(), self._anchor, strict=True)
        sizes = (relative(largest(p - a), p, a, least=self._largest_change) for p, a in pairs)
        return max(sizes, default=0.0)

    def differences(self, found: nn.Module) -> dict[str, float]:
        """Return the largest relative difference between the arm's model and this one, by parameter."""
        return differences(found, self.model, self._largest_change)

    @torch.no_grad()
    def _find_largest_change(self) -> float:
        """Return the largest change of a number in this step's update; 0 if none is finite."""
        changes = [largest(p - a) for p, a in zip(self.model.parameters(), self._anchor, strict=True)]
        return max((change for change in changes if math.isfinite(change)), default=0.0)

    @torch.no_grad()
    def compare_update(self, found: nn.Module) -> Update:
        """Return how the arm's first update compares with the reference's."""
        steps = list(zip(found.parameters(), self.model.parameters(), self._start, strict=True))
        whole = dot((e - s, e - s) for _, e, s in steps)
        if not whole:
            return Update(math.nan, math.nan)
        along, apart = dot((f - s, e - s) for f, e, s in steps), dot((f - e, f - e) for f, e, _ in steps)
        return Update(along / whole, math.sqrt(apart / whole))

    def explain(self, found: nn.Module, step: int) -> dict[str, Any]:
        """Return fields of the ``WrongStep`` of the arm: its parts, and whether the workload hides a state.

        Both took the step from the same parameters, by plain SGD. The parts are left out if the gradients
        were not kept, or if a number is not finite.
        """
        fields: dict[str, Any] = {"uncarried": not self._is_carried(step)}
        if not self._keeps or not self.rate:
            return fields
        pairs = list(zip(self._anchor, found.parameters(), self.model.parameters(), strict=True))
        taken = Taken(
            update=joined(a - f for a, f, _ in pairs) / self.rate,
            right=joined(a - e for a, _, e in pairs) / self.rate,
            shards=torch.stack([self._joined_gradients(its) for its in self._gradients]),
            before=joined(b - a for b, a in zip(self._before, self._anchor, strict=True)) / self.rate
            if self._before
            else None,
        )
        is_finite = bool(torch.isfinite(taken.update + taken.right).all())
        return fields | explain(taken) if is_finite else fields

    def _joined_gradients(self, gradients: Gradients) -> torch.Tensor:
        zeros = map(torch.zeros_like, self.model.parameters())
        return joined(zero if g is None else g for zero, g in zip(zeros, gradients, strict=True))

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

    def is_finite(self) -> bool:
        """Return whether all parameters of the reference are finite."""
        return all(bool(torch.isfinite(parameter).all()) for parameter in self.model.parameters())

    def drop_start(self) -> None:
        """Free the copies of earlier parameters, after which no update can be compared."""
        self._start, self._before, self._anchor = [], [], []

    @torch.no_grad()
    def add_error(self, found: nn.Module) -> None:
        """Add the arm's difference after this step to the sum over all steps."""
        self._apart = self._apart or [torch.zeros_like(p) for p in self.model.parameters()]
        for total, f, e in zip(self._apart, found.parameters(), self.model.parameters(), strict=True):
            total.add_(f).sub_(e)

    @torch.no_grad()
    def error_of_all(self, found: nn.Module) -> float:
        """Return the sum of all differences over the sum of all right updates, by Euclidean norms.

        NaN if the right updates add up to zero.
        """
        right = [f - s - a for f, s, a in zip(found.parameters(), self._start, self._apart, strict=True)]
        whole = dot((r, r) for r in right)
        return math.sqrt(dot((a, a) for a in self._apart) / whole) if whole else math.nan


def _cloned(gradients: Gradients) -> Gradients:
    return [None if gradient is None else gradient.clone() for gradient in gradients]


def _give(model: nn.Module, gradients: Gradients) -> None:
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient

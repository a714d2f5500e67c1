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
from compare.worker import shards, steps
from compare.worker.randomness import states_of_generators
from compare.worker.shards import Gradients, Shard, copy_tensors, seed_step
from compare.worker.task import Task
from compare.worker.watchdog import PassTimer

_CLEAR_FACTOR = 10.0
"""Factor by which a wrong step must exceed the limit to be told apart; rounding may hide smaller excess."""


class Reference:
    """The arm's training in a single process, shard by shard.

    One that ``drifts`` trains on the combined batch, and takes over the arm's parameters only at its start.

    A proof shows nothing where a wrong step has the same result as the right one, because every gradient is
    zero, for example, or because all ranks have the same samples. So each step is compared with three wrong
    ones. ``alone`` takes this shard's gradient in place of the mean, ``sum`` adds up the gradients of all
    shards, and ``none`` changes nothing. A parameter is told apart from a wrong step if, in one or more steps
    of the proof, the two steps differ by far more than the limit of the gate.
    """

    is_plain: ClassVar[bool] = True
    """Whether a step is one backward pass of each shard's loss, followed by one optimizer step."""

    def __init__(
        self, task: Task, replica: Replica, start: nn.Module, timer: PassTimer, *, drifts: bool
    ) -> None:
        """Make a model and batches for each shard of a replica's arm.

        All models start with the parameters and buffers of ``start``. ``timer`` times every pass.
        """
        self.shard_of_rank = task.shards_of(replica.shard[1])
        """The shard that each rank of the arm takes, in the order of ranks."""
        index, count = (0, 1) if drifts else task.shard_of(replica.shard)
        self.acted: list[bool] = []
        """For each step, whether ``before_step`` changed a gradient; empty without such a function."""
        self.alone: Gradients = []
        """The gradients of this rank's shard in the latest step; empty once no comparison needs them."""
        self._drifts, self._index, self._timer = drifts, index, timer
        self._passes = max(self.shard_of_rank) + 1 if drifts else 1
        own = self._make_shard(task, index, count, start)
        self._shards = [
            own if number == index else self._make_shard(task, number, count, start, own.model)
            for number in range(count)
        ]
        self._task, self.model = own.task, own.model
        self._optimizer = self._task.make_optimizer(list(own.model.parameters()))
        self._before_step = self._task.before_step()
        self._clip = task.anew().before_step() if task.changes_gradients else None
        self._parts: Callable[[Batch], list[Batch]] = (lambda batch: [batch]) if drifts else replica.parts
        self._broadcasts = replica.broadcasts_buffers
        names = [name for name, p in own.model.named_parameters() if p.requires_grad]
        self.trainable = len(names)
        self._ranks = 1 if drifts else len(self.shard_of_rank)
        kinds: tuple[WrongKind, ...] = ("alone", "sum", "none") if count > 1 else ("none",)
        self.untold: dict[WrongKind, list[str]] = {kind: list(names) for kind in kinds}
        """For each kind of wrong step, the names of the parameters that are not told apart from it so far."""
        self._right: Gradients = []
        self._wrong: dict[WrongKind, Iterable[torch.Tensor | None]] = {}
        self._mean: Gradients = []
        self._gradients: list[Gradients] = []
        numbers = sum(p.numel() for p in own.model.parameters())
        self._keeps_gradients = numbers * (count + 2) <= steps.MOST_EXPLAINED
        self.largest_change = 0.0
        """Largest finite change of any number of the parameters in the latest step."""
        self._first_start: list[torch.Tensor] = []
        self._previous_start: list[torch.Tensor] = []
        self._step_start: list[torch.Tensor] = []
        self._uses: dict[str, int] = {}
        self._errors: list[torch.Tensor] = []

    def _make_shard(
        self, task: Task, index: int, count: int, start: nn.Module, shared: nn.Module | None = None
    ) -> Shard:
        self._timer.begin_passes(0)
        return Shard(task, index, count, start, shared)

    @property
    def shard_count(self) -> int:
        """Return the number of shards, which is 1 if the reference drifts."""
        return len(self._shards)

    @property
    def shares_shards(self) -> bool:
        """Return whether several ranks take the same shard."""
        return len(self.shard_of_rank) > max(self.shard_of_rank) + 1

    @property
    def rate(self) -> float:
        """Return the learning rate of the latest step, from the optimizer's first group."""
        return float(self._optimizer.param_groups[0]["lr"])

    @torch.no_grad()
    def start_from(self, arm_model: nn.Module) -> None:
        """Take over the parameters and buffers of the arm's model, from which the next step starts.

        The models of other shards keep their own buffers and frozen parameters, but get the buffers of the
        first shard if the arm broadcasts buffers. If the reference drifts, only the first call has an effect.
        """
        if self._drifts and self._first_start:
            return
        copy_tensors(arm_model.parameters(), self.model.parameters())
        copied = [parameter.detach().clone() for parameter in self.model.parameters()]
        self._previous_start = self._step_start if self._keeps_gradients else []
        self._step_start = copied
        self._first_start = self._first_start or self._step_start
        copy_tensors(arm_model.buffers(), self.model.buffers())
        for shard in self._shards[1:] if self._broadcasts else []:
            copy_tensors(self._shards[0].model.buffers(), shard.model.buffers())

    def step(self, step: int, scale: float = 1.0) -> None:
        """Take the step of this number, from 0, by the mean of gradients that ``scale_of`` scales."""
        mean = self.mean_gradients(step, scale)
        if self._before_step:
            shards.set_gradients(self.model, shards.clone_gradients(mean))
            self._before_step(self.model, [self._optimizer])
            self._right = shards.clone_gradients([p.grad for p in self.model.parameters()])
            if self._task.changes_gradients:
                self.acted.append(not steps.are_equal(self._right, mean))
        else:
            self._right = mean
        self._wrong = {} if self._drifts else self._wrong_gradients(mean)
        shards.set_gradients(self.model, self._right)
        self._optimizer.step()
        shards.set_gradients(self.model, [None] * len(mean))
        self._note_largest_change()

    def set_buffers(self, buffers: list[list[torch.Tensor]]) -> None:
        """Copy the buffers of each shard into the model of that shard; an empty list changes nothing."""
        for shard, of_shard in zip(self._shards, buffers, strict=False):
            copy_tensors(of_shard, shard.model.buffers())

    def clip_without_state(self, gradients: Gradients) -> Gradients | None:
        """Return gradients as ``before_step`` changes them; None if earlier gradients affect the result."""
        first = list(self._clipped(gradients))
        self._clipped([None if gradient is None else gradient * 3 for gradient in gradients])
        return first if steps.are_equal(first, self._clipped(gradients)) else None

    def mean_gradients(self, step: int, scale: float = 1.0) -> Gradients:
        """Fetch the batches of the step of this number, and return the mean of all shards' gradients.

        The gradients are added up shard by shard, because a large model has no room for those of all.
        """
        self._mean, self._right, self._wrong, self._gradients, self.alone = [], [], {}, [], []
        total: Gradients = [None for _ in self.model.parameters()]
        for index, shard in enumerate(self._shards):
            self._timer.begin_passes(self._passes)
            shard.fetch(step, self._parts)
            gradients = shard.gradients(shards.scale_of(index, scale), dense=not self._drifts)
            self._keep(gradients, step, index)
            shards.add_gradients(gradients, total)
            del gradients  # before those of the next shard are computed
        for index, gradient in enumerate(total):
            total[index] = (
                gradient if gradient is None or self.shard_count == 1 else gradient / self.shard_count
            )
        self._mean = total
        return total

    def _keep(self, gradients: Gradients, step: int, index: int) -> None:
        """Keep of a shard's gradients what comparisons need, and count whose parameters got one at first."""
        if index == self._index and self.untold.get("alone", True):
            self.alone = list(gradients)
        if self._keeps_gradients:
            self._gradients.append(list(gradients))
        if step == 0:
            for (name, parameter), gradient in zip(self.model.named_parameters(), gradients, strict=True):
                if parameter.requires_grad:
                    earlier = self._uses.get(name, 0) if index else 0
                    self._uses[name] = earlier + (gradient is not None)

    def _wrong_gradients(self, mean: Gradients) -> dict[WrongKind, Iterable[torch.Tensor | None]]:
        """Return the gradients of each kind of wrong step that some parameter is not yet told apart from."""
        summed = (None if g is None else g * self._ranks for g in mean)  # one by one, to save memory
        all_kinds: dict[WrongKind, Iterable[torch.Tensor | None]] = {
            "alone": self.alone,
            "sum": summed,
            "none": [None] * len(mean),
        }
        wrong = {kind: all_kinds[kind] for kind, names in self.untold.items() if names}
        return {kind: given if kind == "none" else self._clipped(given) for kind, given in wrong.items()}

    def _clipped(self, gradients: Iterable[torch.Tensor | None]) -> Iterable[torch.Tensor | None]:
        """Return gradients as the user's ``before_step`` changes them; the same ones without it."""
        if not self._clip:
            return gradients
        shards.set_gradients(self.model, shards.clone_gradients(gradients))
        self._clip(self.model, [])
        return [p.grad for p in self.model.parameters()]

    @torch.no_grad()
    def tell_apart(self, limit: float) -> None:
        """Remove the parameters from ``untold`` that a wrong step would move far beyond a limit."""
        rate = abs(self.rate) if self.is_plain else 1.0  # another step is compared by its parameters
        for kind, wrong in self._wrong.items():
            told_apart = set()
            for (name, p), one, other in zip(self.model.named_parameters(), self._right, wrong, strict=True):
                apart = steps.relative(rate * steps.distance(one, other), p, least=self.largest_change)
                if _CLEAR_FACTOR * limit < apart < math.inf:
                    told_apart.add(name)
            self.untold[kind] = [name for name in self.untold[kind] if name not in told_apart]

    @property
    def first_batches(self) -> list[str]:
        """Return the SHA-256 of each shard's first batch; the list is empty unless the user has a loader."""
        return [shard.first_batch for shard in self._shards if shard.first_batch]

    @property
    def shared_samples(self) -> float:
        """Return the largest overlap of two shards: the fraction of the later one's samples in the other."""
        pairs = combinations([shard.samples for shard in self._shards], 2)
        return max((len(one & other) / len(other) for one, other in pairs if other), default=0.0)

    def unused(self) -> list[str]:
        """Return the names of the parameters that got no gradient from any shard."""
        return [name for name, count in self._uses.items() if not count]

    def require_every_gradient(self) -> None:
        """Check that every trainable parameter got a gradient from every shard in the first step.

        Raises:
            BackendError: some did not; the message names them.
        """
        few = [name for name, count in self._uses.items() if 0 < count < self.shard_count]
        for where, names in (("on any rank", self.unused()), ("on some ranks", few)):
            if names:
                raise BackendError(
                    f"these parameters take no part in the loss {where}: {', '.join(names)}. This arm cannot "
                    "average them. Leave them out of the model, set their requires_grad to False, or use "
                    "ddp:find_unused_parameters=true."
                )

    def relative_update(self) -> float:
        """Return the largest change of a number in the latest step, relative to its parameter's largest."""
        return max(steps.differences(self.model, self._step_start, self.largest_change).values(), default=0.0)

    @torch.no_grad()
    def _note_largest_change(self) -> None:
        """Set ``largest_change`` after a step."""
        pairs = zip(self.model.parameters(), self._step_start, strict=True)
        changes = [steps.largest(p - a) for p, a in pairs]
        self.largest_change = max((change for change in changes if math.isfinite(change)), default=0.0)

    def explain(self, arm_model: nn.Module, step: int) -> dict[str, Any]:
        """Return fields of the arm's ``WrongStep``: ``uncarried``, and those of ``steps.explain``.

        The arm and the reference took the step from the same parameters, by plain SGD. The latter fields are
        left out if gradients were not kept, or a number is not finite. Without ``is_plain`` all are left out.
        """
        if not self.is_plain:
            return {}
        fields: dict[str, Any] = {"uncarried": not self._is_carried(step)}
        if not self._keeps_gradients or not self.rate:
            return fields

        def moved(start: Iterable[torch.Tensor], end: Iterable[torch.Tensor]) -> torch.Tensor:
            return steps.as_vector(s - e for s, e in zip(start, end, strict=True)) / self.rate

        update, right = (moved(self._step_start, model.parameters()) for model in (arm_model, self.model))
        if not bool(torch.isfinite(update + right).all()):
            return fields
        zeros = [torch.zeros_like(parameter) for parameter in self.model.parameters()]
        parts = [
            steps.as_vector(zero if g is None else g for zero, g in zip(zeros, of_shard, strict=True))
            for of_shard in self._gradients
        ]
        before = moved(self._previous_start, self._step_start) if self._previous_start else None
        return fields | steps.explain(update, right, torch.stack(parts), before)

    def _is_carried(self, step: int) -> bool:
        """Return whether two new models of the task compute the same gradients in this step.

        If not, something outside the model keeps a state: a global variable of the user's file, or a closure
        that a new call of the user's function does not make anew.
        """
        gradients = []
        for _ in range(2):
            self._timer.begin_passes()
            shard = Shard(self._task, self._index, self.shard_count, self.model, None)
            shard.parts = self._shards[self._index].parts
            seed_step(self._task.config, step, self._index)
            gradients.append(shard.gradients())
        apart = (steps.distance(one, other) for one, other in zip(*gradients, strict=True))
        return all(size == 0 or math.isnan(size) for size in apart)

    def distance_of_combined(self) -> float | None:
        """Return how far the mean gradient of the first step is from that of the combined batch.

        The distance is relative to the norm of the mean. It is None if dropout, BatchNorm or the form of the
        batches prevents a comparison, or if there is only one shard.
        """
        batch = shards.combine([shard.taken for shard in self._shards], self._task.config.batch_size_per_rank)
        if batch is None or self.shard_count == 1 or not self._first_start or not self._mean:
            return None
        shard = Shard(self._task, 0, self.shard_count, self.model, None)
        copy_tensors(self._first_start, shard.model.parameters())
        shard.parts = [batch]
        buffers = [buffer.clone() for buffer in shard.model.buffers()]
        seed_step(self._task.config, 0, 0)
        generators = states_of_generators()
        gradients = shard.gradients()
        is_random = generators != states_of_generators()
        changes = (not torch.equal(*pair) for pair in zip(shard.model.buffers(), buffers, strict=True))
        if is_random or any(changes):
            return None
        both = zip(gradients, self._mean, strict=True)
        pairs = [(g, m) for g, m in both if g is not None and m is not None]
        whole = steps.dot((m, m) for _, m in pairs)
        return math.sqrt(steps.dot((g - m, g - m) for g, m in pairs) / whole) if whole else None

    def drop_copies(self) -> None:
        """Free the copies of earlier parameters; after that, no update can be compared."""
        self._first_start, self._previous_start, self._step_start, self._errors = [], [], [], []

    @torch.no_grad()
    def add_error(self, arm_model: nn.Module) -> None:
        """Add the difference of the arm's parameters after this step to the sum over all steps."""
        self._errors = self._errors or [torch.zeros_like(p) for p in self.model.parameters()]
        for total, f, e in zip(self._errors, arm_model.parameters(), self.model.parameters(), strict=True):
            total.add_(f).sub_(e)

    @torch.no_grad()
    def compare_updates(self, arm_model: nn.Module) -> tuple[float, float]:
        """Compare the sum of the arm's updates so far with the sum of the right ones.

        ``add_error`` must have been called after each of these steps.

        Returns:
            The component of the arm's sum along the right sum, and its distance from the right sum. Both are
            relative to the Euclidean norm of the right sum, and NaN if that is zero. The component is 1 if
            the arm is right, 0 if it does not move, and the number of ranks if it adds up gradients.
        """
        apart = self._errors
        right = [f - s - a for f, s, a in zip(arm_model.parameters(), self._first_start, apart, strict=True)]
        whole = steps.dot((r, r) for r in right)
        if not whole:
            return math.nan, math.nan
        along = steps.dot((r + a, r) for r, a in zip(right, apart, strict=True))
        return along / whole, math.sqrt(steps.dot((a, a) for a in apart) / whole)


class StepReference(Reference):
    """A reference that takes the user's own step for one process, ``Workload.reference_step``.

    This step takes the batches of all ranks. It is compared with two wrong steps: one that takes only this
    rank's batch, and one that changes nothing.
    """

    is_plain = False

    def __init__(self, task: Task, replica: Replica, start: nn.Module, timer: PassTimer) -> None:
        super().__init__(task, replica, start, timer, drifts=False)
        self._take_step = _make_step(self._shards[self._index])
        self._wrong_shard = self._make_shard(task, self._index, self.shard_count, start)
        self._take_wrong_step = _make_step(self._wrong_shard)
        self.untold.pop("sum", None)

    def step(self, step: int, scale: float = 1.0) -> None:
        """Take the step of this number, from 0; ``scale`` has no effect, because the user takes the step."""
        del scale
        self._timer.begin_passes(self.shard_count)
        for shard in self._shards:
            shard.fetch(step, self._parts)
        self._take_step([shard.taken[0] for shard in self._shards])
        self._right = list(self.model.parameters())
        self._wrong = self._wrong_parameters() if any(self.untold.values()) else {}
        self._note_largest_change()

    def _wrong_parameters(self) -> dict[WrongKind, Iterable[torch.Tensor | None]]:
        """Return the parameters after each kind of wrong step."""
        copy_tensors(self._step_start, self._wrong_shard.model.parameters())
        self._timer.begin_passes()
        self._take_wrong_step([self._shards[self._index].taken[0]])
        wrong: dict[WrongKind, Iterable[torch.Tensor | None]] = {
            "alone": list(self._wrong_shard.model.parameters()),
            "none": list(self._step_start),
        }
        return {kind: wrong[kind] for kind in self.untold}


def _make_step(shard: Shard) -> Callable[[list[Batch]], object]:
    """Return the user's step of one process, which trains the model of a shard."""
    make = shard.task.workload.reference_step
    assert make  # noqa: S101 -- the proof chose this class by it
    return make(shard.model, shard.task.make_optimizer)

"""Train in a single process by a step of the user's own."""

from __future__ import annotations

import math

import torch
from torch import nn

from backends.base import Replica
from compare.schema.parity import WrongKind, WrongStep
from compare.worker.difference import Difference
from compare.worker.pace import Pace
from compare.worker.reference import Reference
from compare.worker.shards import seed_step
from compare.worker.task import Task
from compare.worker.told_apart import ToldApart, distance, relative


class StepReference(Reference):
    """A reference whose step the user wrote, because it is no plain step of one loss.

    The step takes the batches of all ranks. It is compared with two wrong steps: one that takes only this
    rank's batch, and one that changes nothing.
    """

    is_plain = False

    def __init__(
        self,
        task: Task,
        replica: Replica,
        start: nn.Module,
        pace: Pace | None = None,
        *,
        drifts: bool,
    ) -> None:
        super().__init__(task, replica, start, pace, drifts=drifts)
        self._take = self._task.make_reference_step(self.model)
        index, count = replica.shard
        self._other = self._make_shard(task, index, count, start)
        self._take_alone = self._other.task.make_reference_step(self._other.model)
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        self.told_apart = ToldApart(names, ("alone", "none") if count > 1 else ("none",))
        self._far: dict[WrongKind, dict[str, float]] = {}

    def step(self, step: int, scale: float = 1.0) -> None:
        """Take a step, counted from 0; ``scale`` has no effect, because the step has its own losses."""
        del scale
        self._pace.note(len(self._shards))
        for index, shard in enumerate(self._shards):
            seed_step(self._task.config, step, index)
            shard.fetch(1, lambda batch: [batch])
            if self._task.has_own_loader:
                self._note_samples(index, shard.taken)
        self._take([shard.taken[0] for shard in self._shards])
        if not self.told_apart.is_complete:
            self._note_wrong_steps()
        self._largest_change = self._find_largest_change()

    def _note_wrong_steps(self) -> None:
        """Note how far the parameters of each wrong step are from those of the right one."""
        with torch.no_grad():
            for own, anchor in zip(self._other.model.parameters(), self._anchor, strict=True):
                own.copy_(anchor)
        self._pace.note()
        self._take_alone([self._shards[self._index].taken[0]])
        named = list(self.model.named_parameters())
        others: dict[WrongKind, list[torch.Tensor]] = {
            "alone": list(self._other.model.parameters()),
            "none": self._anchor,
        }
        self._far = {
            kind: {
                name: relative(distance(p.detach(), other.detach()), p.detach(), 0.0)
                for (name, p), other in zip(named, others[kind], strict=True)
            }
            for kind in self.told_apart.untold
        }

    def tell_apart(self, limit: float) -> None:
        """Note which parameters differ between the latest step and a wrong one by far more than a limit."""
        if self._far:
            self.told_apart.look(self._far, limit)

    def explain(self, found: nn.Module, step: int, difference: Difference) -> WrongStep:
        """Return where and by how much the arm's step is wrong, without shares of gradients."""
        del found
        size = difference.size if math.isfinite(difference.size) else None
        return WrongStep(step=step + 1, parameter=difference.parameter, difference=size)

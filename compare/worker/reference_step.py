"""Train in a single process by a step of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from backends.base import Batch, Replica
from compare.schema.parity import WrongKind
from compare.worker.reference import Reference
from compare.worker.shards import Shard, copy_tensors, seed_step
from compare.worker.task import Task
from compare.worker.watchdog import Pace


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
        for index, shard in enumerate(self._shards):
            seed_step(self._task.config, step, index)
            shard.fetch(1, lambda batch: [batch])
            if self._task.workload.loader:
                self._note_samples(index, shard.taken)
        self._take([shard.taken[0] for shard in self._shards])
        self._right = list(self.model.parameters())
        self._wrong = self._wrong_parameters() if any(self.untold.values()) else {}
        self._largest_change = self._find_largest_change()

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

    def explain(self, found: nn.Module, step: int) -> dict[str, Any]:
        """Return no parts of a wrong step, because it has no shares of gradients."""
        del found, step
        return {}


def _step_of(shard: Shard) -> Callable[[list[Batch]], object]:
    make = shard.task.workload.reference_step
    assert make  # noqa: S101 -- the proof chose this class by it
    return make(shard.model, shard.task.make_optimizer)

"""Train a workload of the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, default_collate

from compare.worker.own_batches import LoaderBatches, SampleBatches, in_dtype, move, sized
from compare.worker.task import Task
from compare.worker.user_file import Factory, MakeWorkload, load_workload
from compare.workload import WorkloadError

if TYPE_CHECKING:
    from backends.base import Batch, Facts
    from compare.data import DatasetSource
    from compare.schema.config import RunConfig

_TESTED = 1000
"""Training samples that are tested where there is no test set."""


class OwnTask(Task):
    """The task of a user's workload on one rank."""

    is_own = True
    test_needs_gradients: bool = False
    """Whether the loss takes gradients itself, as a gradient penalty does."""

    def __init__(self, config: RunConfig, make: MakeWorkload, device: torch.device) -> None:
        """Call a factory with the run's seed.

        Raises:
            WorkloadError: the data is no map-style data set, or has fewer samples than a global batch.
        """
        self._make = Factory(make, config, device)
        super().__init__(config, device, self._make.first)
        self.has_metric = self.workload.metric is not None
        self._is_taken = False
        samples, needed = len(sized(self.workload.data)), config.global_batch_size
        if samples < needed:
            raise WorkloadError(
                f"the workload has {samples} training samples, but a step of all ranks takes {needed}. "
                "Choose a smaller --batch-size."
            )

    @classmethod
    def load(cls, config: RunConfig, source: DatasetSource, device: torch.device) -> OwnTask:
        """Call the user's factory with the run's seed, and return the task of its workload.

        Raises:
            WorkloadError: the user's folder has changed, or the workload cannot be trained.
        """
        return cls(config, load_workload(source, config.seed), device)

    def attest(self) -> Facts:
        return {"function_called_once": self._make.is_slow}

    def anew(self) -> Self:
        task = super().anew()
        task.workload = self._make()
        vars(task)["_is_taken"] = False
        return task

    def build_model(self) -> nn.Module:
        assert not self._is_taken, "a task gives its model once"  # noqa: S101 -- our own mistake
        self._is_taken = True
        model = self.workload.model.to(self.device)
        if self.gate_dtype is not None:
            _cast(model, self.gate_dtype)
        torch.manual_seed(self.config.seed)
        return model

    def batches(self, shard: tuple[int, int]) -> SampleBatches | LoaderBatches:
        return LoaderBatches(self, shard) if self.workload.loader else SampleBatches(self, shard)

    def test_batches(self, shard: tuple[int, int]) -> Iterator[tuple[int, Batch]]:
        # Without test data, the first training samples are tested.
        workload, (index, count) = self.workload, shard
        held = workload.data if workload.test_data is None else workload.test_data
        total = len(sized(held))
        chosen = range(index, total if workload.test_data is not None else min(_TESTED, total), count)
        size = self.config.batch_size_per_rank
        loader = DataLoader(Subset(held, chosen), size, collate_fn=workload.collate or default_collate)  # type: ignore[arg-type]
        for number, batch in enumerate(loader):
            yield min(size, len(chosen) - number * size), move(batch, self.device, self.gate_dtype)

    def test_batch(self, model: nn.Module, batch: Batch, samples: int) -> tuple[float, float]:
        workload = self.workload
        with torch.set_grad_enabled(self.test_needs_gradients):
            loss = _number(workload.loss(model, batch))
            metric = _number(workload.metric(model, batch)) if workload.metric else 0.0
        return samples * loss, samples * metric


@torch.no_grad()
def _cast(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert a model's floating-point tensors to a dtype, in place; complex ones stay complex.

    Raises:
        WorkloadError: a parameter has another value in float64 than before.
    """
    before = [(name, parameter.detach().clone()) for name, parameter in model.named_parameters()]
    model._apply(lambda tensor: in_dtype(tensor, dtype))  # noqa: SLF001 -- ``to`` makes complex numbers real
    for (name, old), new in zip(before, model.parameters(), strict=True):
        if dtype == torch.float64 and not torch.equal(new.to(old.dtype), old):
            raise WorkloadError(
                f"{name} has another value in float64, so the proof would be of another model. Let no "
                "parameter be NaN, and use dtypes that float64 holds exactly."
            )


def _number(figure: float | torch.Tensor) -> float:
    return float(figure.detach() if isinstance(figure, torch.Tensor) else figure)

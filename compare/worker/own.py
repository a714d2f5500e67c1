"""Train a workload of the user's own."""

from __future__ import annotations

import copy
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator, Sized
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, default_collate

from compare.data.own import code_digest
from compare.schema.results import Evaluation
from compare.worker.batches import ShardOrder
from compare.worker.randomness import same_randomness, seed_generators
from compare.worker.task import PROOF_DTYPES, PROOF_RATE, PROOF_SAMPLES, PROOF_SETTINGS, Task
from compare.workload import Workload, WorkloadError

if TYPE_CHECKING:
    from backends.base import Batch, Facts, Loss
    from compare.data import DatasetSource
    from compare.schema.config import RunConfig
    from compare.schema.results import PassKind
    from compare.worker.loop import BeforeStep

_TESTED = 1000
"""Training samples that are tested where there is no test set."""


def load_workload(source: DatasetSource) -> Workload:
    """Call the factory of a file.

    Raises:
        WorkloadError: the folder differs from the parent's, or the factory returns no workload.
        Exception: any error of the user's own code.
    """
    folder = Path(source.directory)
    name, _, factory = source.workload.partition(":")
    if code_digest(folder) != source.sha256:
        raise WorkloadError(
            f"{folder} is not the folder that the run began with: was a file changed meanwhile? Run again."
        )
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(Path(name).stem, folder / name)
    assert spec is not None  # noqa: S101 -- the name ends with .py
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # so that its classes can be pickled by its loaders
    spec.loader.exec_module(module)
    make = getattr(module, factory, None)
    if not callable(make):
        raise WorkloadError(f"{folder / name} has no function {factory}: name one that is there.")
    made = make()
    if not isinstance(made, Workload):
        raise WorkloadError(
            f"{folder / name}:{factory} returned {type(made).__name__}: return a compare.workload.Workload."
        )
    return made


class OwnTask(Task):
    """A workload on one rank.

    ``dtype`` is that of a proof; None keeps the model's own.
    """

    def __init__(
        self,
        config: RunConfig,
        workload: Workload,
        start: nn.Module,
        device: torch.device,
        *,
        dtype: torch.dtype | None = None,
        plain: bool = False,
    ) -> None:
        super().__init__(config, device)
        self._workload = workload
        self._start = start
        self._dtype = dtype
        self._plain = plain

    @classmethod
    def load(cls, config: RunConfig, source: DatasetSource, device: torch.device) -> OwnTask:
        """Call the user's factory, with the run's seed.

        Raises:
            WorkloadError: what it returns cannot be trained.
        """
        seed_generators(config.seed)
        workload = load_workload(source)
        samples, needed = len(_sized(workload.data)), config.global_batch_size
        if samples < needed:
            raise WorkloadError(
                f"the workload has {samples} training samples, but a step of all ranks takes {needed}: "
                "choose a smaller --batch-size"
            )
        return cls(config, workload, workload.model, device)

    def build_model(self) -> nn.Module:
        torch.manual_seed(self.config.seed)
        return copy.deepcopy(self._start).to(self.device, self._dtype)

    def make_optimizer(self, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        if self._plain:
            return torch.optim.SGD(parameters, lr=PROOF_RATE)
        return self._workload.optimizer(parameters)

    @property
    def plain_loss(self) -> Loss:
        return self._workload.loss

    def before_step(self) -> BeforeStep | None:
        change, schedule = self._workload.before_step, None if self._plain else self._workload.schedule
        if change is None and schedule is None:
            return None
        steps = 0
        rates: list[float] = []

        def prepare(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
            nonlocal steps, rates
            if change:
                change([p for p in model.parameters() if p.grad is not None])
            if schedule:
                groups = [group for optimizer in optimizers for group in optimizer.param_groups]
                rates = rates or [group["lr"] for group in groups]
                for group, rate in zip(groups, rates, strict=True):
                    group["lr"] = rate * schedule(steps)
            steps += 1

        return prepare

    def batches(self, shard: tuple[int, int]) -> SampleBatches:
        return SampleBatches(self._workload, shard, self.config, self.device, self._dtype)

    @torch.no_grad()
    def test(self, model: nn.Module, shard: tuple[int, int], on_batch: Callable[[], None]) -> Evaluation:
        workload, (index, count) = self._workload, shard
        held = workload.data if workload.test_data is None else workload.test_data
        total = len(_sized(held))
        chosen = range(index, total if workload.test_data is not None else min(_TESTED, total), count)
        size = self.config.batch_size_per_rank
        loader = DataLoader(Subset(held, chosen), size, collate_fn=workload.collate or default_collate)  # type: ignore[arg-type]
        losses = metrics = 0.0
        training = model.training
        model.eval()
        for number, batch in enumerate(loader):
            on_batch()
            samples, moved = min(size, len(chosen) - number * size), move(batch, self.device, self._dtype)
            losses += samples * float(workload.loss(model, moved))
            if workload.metric:
                metrics += samples * float(workload.metric(model, moved))
        model.train(training)
        return Evaluation(
            correct=metrics if workload.metric else None,
            samples=len(chosen),
            loss_sum=losses if math.isfinite(losses) else None,
        )

    def for_proof(self, kind: PassKind) -> OwnTask:
        size = min(self.config.batch_size_per_rank, max(1, PROOF_SAMPLES // self.config.ranks))
        config = msgspec.structs.replace(self.config, batch_size_per_rank=size, **PROOF_SETTINGS[kind])
        gate = kind != "as run"
        dtype = PROOF_DTYPES[kind] if gate else None
        return OwnTask(config, self._workload, self._start, self.device, dtype=dtype, plain=gate)


class SampleBatches:
    """Endless batches of one shard of a data set, sample by sample."""

    def __init__(
        self,
        workload: Workload,
        shard: tuple[int, int],
        config: RunConfig,
        device: torch.device,
        dtype: torch.dtype | None,
    ) -> None:
        self._data = workload.data
        self._collate = workload.collate or default_collate
        self._order = ShardOrder(shard, config, len(_sized(workload.data)))
        self._device, self._dtype = device, dtype

    def attest(self) -> Facts:
        """Return samples, dtype and shard of a batch, and the training samples."""
        with same_randomness(torch.device("cpu")):
            batch = self._collate([self._data[0]])
        return {
            "samples": self._order.size,
            "dtype": ", ".join(sorted({str(t.dtype) for t in tensors_of(batch)})),
            "shard": list(self._order.shard),
            "training_samples": len(_sized(self._data)),
        }

    def __iter__(self) -> Iterator[Batch]:
        loader = DataLoader(
            self._data,  # type: ignore[arg-type]  # it needs len() and an index alone
            batch_sampler=self._indices(),
            collate_fn=self._collate,
            generator=torch.Generator(),
        )  # type: ignore[arg-type]
        for batch in loader:
            yield move(batch, self._device, self._dtype)

    def _indices(self) -> Iterator[list[int]]:
        """Yield the indices of each batch, without end."""
        for epoch in count():
            yield from self._order.of_epoch(epoch).tolist()


def move(batch: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """Move a batch to a device; its floats become ``dtype``."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, dtype if dtype and batch.is_floating_point() else batch.dtype)
    if isinstance(batch, dict):
        return type(batch)({name: move(part, device, dtype) for name, part in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(part, device, dtype) for part in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(move(part, device, dtype) for part in batch)
    return batch


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors of a batch."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, dict):
        for part in batch.values():
            yield from tensors_of(part)
    elif isinstance(batch, (tuple, list)):
        for part in batch:
            yield from tensors_of(part)


def _sized(data: Any) -> Sized:
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise WorkloadError("the workload's data has no len() or no index: hand over a map-style data set")
    return data  # type: ignore[no-any-return]

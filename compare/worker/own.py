"""Train a workload of the user's own."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, default_collate

from compare.data.own import changed_files, code_digest
from compare.schema.results import Evaluation
from compare.worker.batches import ShardOrder
from compare.worker.randomness import same_randomness, seed_generators
from compare.worker.task import PROOF_DTYPES, PROOF_RATE, PROOF_SAMPLES, PROOF_SETTINGS, Task, tensors_of
from compare.workload import Workload, WorkloadError

if TYPE_CHECKING:
    from backends.base import Batch, Facts, Loss, MakeStep, Replica
    from compare.data import DatasetSource
    from compare.schema.config import RunConfig
    from compare.schema.parity import PassKind
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
            f"{folder} is not the folder that the run began with: {changed_files(source)}. Run again, and "
            "save no Python file below it meanwhile."
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

    @property
    def changes_gradients(self) -> bool:
        return self._workload.before_step is not None

    def before_step(self) -> BeforeStep | None:
        change, schedule = self._workload.before_step, self._workload.schedule
        if self._plain and not self._workload.own_step:  # a step of the user's own follows the schedule
            schedule = None
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

    @property
    def has_own_loader(self) -> bool:  # type: ignore[override]
        return self._workload.loader is not None

    @property
    def make_step(self) -> MakeStep:
        return self._workload.own_step or super().make_step

    def batches(self, shard: tuple[int, int]) -> SampleBatches | LoaderBatches:
        if self._workload.loader:
            return LoaderBatches(self._workload, shard, self.config, self.device, self._dtype)
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

    def for_proof_of(self, replica: Replica) -> Task:
        workload = self._workload
        if not replica.averages_gradients:  # each rank changes its own, which one process has not
            workload = dataclasses.replace(workload, before_step=None)
        made = OwnTask(self.config, workload, self._start, self.device, dtype=self._dtype, plain=self._plain)
        return super(OwnTask, made).for_proof_of(replica)


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


class LoaderBatches:
    """Endless batches of one shard, from the user's own loader."""

    def __init__(
        self,
        workload: Workload,
        shard: tuple[int, int],
        config: RunConfig,
        device: torch.device,
        dtype: torch.dtype | None,
    ) -> None:
        assert workload.loader  # noqa: S101 -- the task chose this class by it
        self._size = config.ranks * config.batch_size_per_rank // shard[1]
        with _seeded(config.seed):
            self._loader = workload.loader(*shard, self._size)
        self._samples = len(_sized(workload.data))
        self._shard, self._seed = shard, config.seed
        self._device, self._dtype = device, dtype

    def attest(self) -> Facts:
        """Return the facts of a batch, and the samples of an epoch."""
        batch = self._first(0)[0]
        try:
            whole = len(self._loader) * self._size  # type: ignore[arg-type]
        except TypeError:  # a stream has no length, and its DataLoader raises
            whole = None
        return {
            "samples": self._size,
            "dtype": ", ".join(sorted({str(t.dtype) for t in tensors_of(batch)})),
            "shard": list(self._shard),
            "training_samples": self._samples,
            "samples_of_an_epoch": whole,
        }

    def __iter__(self) -> Iterator[Batch]:
        for epoch in count():
            first, rest = self._first(epoch)
            for batch in chain([first], rest):
                if self._is_whole(batch):
                    yield move(batch, self._device, self._dtype)

    def _first(self, epoch: int) -> tuple[Batch, Iterator[Batch]]:
        """Seed and begin an epoch, and fetch its first batch.

        Raises:
            WorkloadError: the loader yields no batch of the size that it was asked for.
        """
        sampler = getattr(self._loader, "sampler", None)
        if sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        with _seeded(self._seed * 1_000_003 + epoch):
            batches = iter(self._loader)
            first = next(batches, None)
        if first is None or not self._is_whole(first):
            raise WorkloadError(
                f"the loader of shard {self._shard} does not begin with {self._size} samples. "
                "Yield batches of that size, its third argument, and begin each epoch anew."
            )
        return first, batches

    def _is_whole(self, batch: Batch) -> bool:
        """Return whether a batch has the size of the run."""
        sizes = [len(tensor) for tensor in tensors_of(batch) if tensor.dim()]
        return not sizes or sizes[0] == self._size


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the generators that order the samples, and restore them."""
    with same_randomness(torch.device("cpu")):
        seed_generators(seed)
        yield


def move(batch: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """Move a batch to a device; its floats become ``dtype``."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, dtype if dtype and batch.is_floating_point() else batch.dtype)
    if isinstance(batch, Mapping):
        return type(batch)({name: move(part, device, dtype) for name, part in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(part, device, dtype) for part in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(move(part, device, dtype) for part in batch)
    return batch


def _sized(data: Any) -> Sized:
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise WorkloadError("the workload's data has no len() or no index: hand over a map-style data set")
    return data  # type: ignore[no-any-return]

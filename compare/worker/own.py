"""Train a workload of the user's own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, default_collate

from compare.schema.results import Evaluation
from compare.worker.factory import Factory, MakeWorkload, load_workload
from compare.worker.own_batches import LoaderBatches, SampleBatches, sized
from compare.worker.task import PROOF_DTYPES, PROOF_RATE, PROOF_SETTINGS, Task, proof_samples
from compare.worker.trees import in_dtype, move
from compare.workload import Workload, WorkloadError

if TYPE_CHECKING:
    from backends.base import Batch, Facts, Loss, MakeStep, Replica
    from compare.data import DatasetSource
    from compare.schema.config import RunConfig
    from compare.schema.parity import PassKind
    from compare.worker.loop import BeforeStep

_TESTED = 1000
"""Training samples that are tested where there is no test set."""


class OwnTask(Task):
    """The task of a user's workload on one rank.

    The gates of a proof cast model and batches to the dtype of the gate; all else keeps the model's dtypes.
    """

    test_needs_gradients: bool = False
    """Whether the loss takes gradients itself, as a gradient penalty does."""

    def __init__(self, config: RunConfig, make: Factory, device: torch.device) -> None:
        super().__init__(config, device)
        self._make = make
        self._workload = make.first
        self._dtype: torch.dtype | None = None
        self._plain = False
        self._clips = True
        self._is_taken = False

    @classmethod
    def load(cls, config: RunConfig, source: DatasetSource, device: torch.device) -> OwnTask:
        """Call the user's factory with the run's seed, and return the task of its workload.

        Raises:
            WorkloadError: the user's folder has changed, or the workload cannot be trained.
        """
        return cls.of(config, load_workload(source), device)

    @classmethod
    def of(cls, config: RunConfig, make: MakeWorkload, device: torch.device) -> OwnTask:
        """Call a factory with the run's seed, and return the task of its workload.

        Raises:
            WorkloadError: the data is no map-style data set, or has fewer samples than a global batch.
        """
        factory = Factory(make, config, device)
        samples, needed = len(sized(factory.first.data)), config.global_batch_size
        if samples < needed:
            raise WorkloadError(
                f"the workload has {samples} training samples, but a step of all ranks takes {needed}: "
                "choose a smaller --batch-size"
            )
        return cls(config, factory, device)

    def attest(self) -> Facts:
        return {"function_called_once": self._make.is_slow}

    def anew(self) -> OwnTask:
        return self._with(workload=self._make(), is_taken=False)

    def _with(self, **changes: Any) -> OwnTask:
        """Return a copy with other values of some private attributes."""
        made = copy.copy(self)
        vars(made).update({f"_{name}": value for name, value in changes.items()})
        return made

    def build_model(self) -> nn.Module:
        assert not self._is_taken, "a task gives its model once"  # noqa: S101 -- our own mistake
        self._is_taken = True
        model = self._workload.model.to(self.device)
        if self._dtype is not None:
            _cast(model, self._dtype)
        torch.manual_seed(self.config.seed)
        return model

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        parameters = list(parameters)
        if self._plain:
            return torch.optim.SGD(_flat(parameters), lr=PROOF_RATE)
        made = self._workload.optimizer(parameters)
        _require_own(made, _flat(parameters))
        return made

    @property
    def workload(self) -> Workload:
        """Return the workload that the factory made for this task; the live object."""
        return self._workload

    @property
    def plain_loss(self) -> Loss:
        return self._workload.loss

    @property
    def changes_gradients(self) -> bool:
        return self._clips and self._workload.before_step is not None

    def before_step(self) -> BeforeStep | None:
        change = self._workload.before_step if self._clips else None
        schedule = self._workload.schedule
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

    @property
    def has_reference_step(self) -> bool:  # type: ignore[override]
        return self._workload.reference_step is not None

    def make_reference_step(self, model: nn.Module) -> Callable[[list[Batch]], object]:
        if self._workload.reference_step is None:
            return super().make_reference_step(model)
        return self._workload.reference_step(model, self.make_optimizer)

    def batches(self, shard: tuple[int, int]) -> SampleBatches | LoaderBatches:
        if self._workload.loader:
            return LoaderBatches(self._workload, shard, self.config, self.device, self._dtype)
        return SampleBatches(self._workload, shard, self.config, self.device, self._dtype)

    def test(self, model: nn.Module, shard: tuple[int, int], on_batch: Callable[[], None]) -> Evaluation:
        losses = metrics = 0.0
        count = 0
        training = model.training
        model.eval()
        for samples, batch in self.test_batches(shard):
            on_batch()
            loss, metric = self.test_batch(model, batch)
            losses, metrics, count = losses + samples * loss, metrics + samples * metric, count + samples
        model.train(training)
        return Evaluation(
            correct=metrics if self._workload.metric else None,
            samples=count,
            loss_sum=losses if math.isfinite(losses) else None,
        )

    def test_batches(self, shard: tuple[int, int]) -> Iterator[tuple[int, Batch]]:
        """Yield the number of samples and the batch itself, for each test batch of a shard.

        Without test data, the batches are of the first ``_TESTED`` training samples.
        """
        workload, (index, count) = self._workload, shard
        held = workload.data if workload.test_data is None else workload.test_data
        total = len(sized(held))
        chosen = range(index, total if workload.test_data is not None else min(_TESTED, total), count)
        size = self.config.batch_size_per_rank
        loader = DataLoader(Subset(held, chosen), size, collate_fn=workload.collate or default_collate)  # type: ignore[arg-type]
        for number, batch in enumerate(loader):
            yield min(size, len(chosen) - number * size), move(batch, self.device, self._dtype)

    def test_batch(self, model: nn.Module, batch: Batch) -> tuple[float, float]:
        """Return the mean loss and the metric of a batch; the metric is 0 if there is none.

        Gradients are enabled only if the loss itself takes gradients (``test_needs_gradients``).
        """
        workload = self._workload
        with torch.set_grad_enabled(self.test_needs_gradients):
            loss = _number(workload.loss(model, batch))
            return loss, _number(workload.metric(model, batch)) if workload.metric else 0.0

    is_own = True

    def factor_at(self, steps: int) -> float:
        return self._workload.schedule(steps) if self._workload.schedule else 1.0

    def for_end(self) -> OwnTask:
        made = self.anew()
        made.config = msgspec.structs.replace(self.config, batch_size_per_rank=proof_samples(self.config))
        return made

    def for_proof(self, kind: PassKind) -> OwnTask:
        size = proof_samples(self.config)
        config = msgspec.structs.replace(self.config, batch_size_per_rank=size, **PROOF_SETTINGS[kind])
        gate = kind != "as run"
        made = self._with(
            workload=self._make(), is_taken=False, plain=gate, dtype=PROOF_DTYPES[kind] if gate else None
        )
        made.config = config
        return made

    def for_proof_of(self, replica: Replica) -> Task:
        # If each rank changes its own gradients, a single process has no averaged ones to change.
        made = self._with(clips=self._clips and replica.averages_gradients)
        return super(OwnTask, made).for_proof_of(replica)


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
                f"{name} has another value in float64, so the proof would be of another model."
            )


def _flat(given: list[Any]) -> list[nn.Parameter]:
    """Return the parameters of a list that may hold parameters, (name, parameter) pairs and groups."""
    found: list[nn.Parameter] = []
    for one in given:
        if isinstance(one, dict):
            held = one["params"]
            found += _flat([held] if isinstance(held, torch.Tensor) else list(held))
        else:
            found.append(one[1] if isinstance(one, tuple) else one)
    return found


def _require_own(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
    """Require that an optimizer holds only the given parameters.

    Raises:
        WorkloadError: it holds others, such as those of a copy of the model.
    """
    given = set(map(id, parameters))
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    others = [parameter for parameter in held if id(parameter) not in given]
    if others:
        shapes = ", ".join(str(tuple(parameter.shape)) for parameter in others[:3])
        raise WorkloadError(
            f"the optimizer holds {len(others)} of {len(held)} parameters that are not the model's (shapes "
            f"{shapes}), so these never train. Make it of the parameters that your function is given."
        )


def _number(figure: float | torch.Tensor) -> float:
    return float(figure.detach() if isinstance(figure, torch.Tensor) else figure)

"""Define a task: all that a rank trains, apart from how gradients are averaged.

A task is a workload with its batches and its test. Each built-in model is a workload as well.
"""

from __future__ import annotations

import copy
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self

import msgspec
import torch
from torch import nn

from backends.base import BackendError, Batch, Facts, Loss, MakeStep, Replica
from compare.schema.config import RunConfig
from compare.schema.parity import PassKind
from compare.schema.results import Evaluation
from compare.worker.compilation import compile_in_place
from compare.worker.loop import BeforeStep
from compare.workload import Workload, WorkloadError

_PROOF_SAMPLES = 8
"""Number of samples of all ranks together in a step of a proof; each rank takes at least one.

A gradient of few samples shows every fault that a gradient of many shows, and costs the reference little.
"""
_MOST_SHARDS = 8
"""Number of ranks above which several take the same samples in a proof, so that its cost is bounded."""
_PROOF_RATE = 0.01
"""Learning rate of a proof's gates, the passes ``float64`` and ``float32``, which train by plain SGD."""
_GATE_SETTINGS = {"optimizer": "sgd", "learning_rate": _PROOF_RATE, "precision": "float32"}
_PROOF_SETTINGS: dict[PassKind, dict[str, Any]] = {
    "float64": _GATE_SETTINGS,
    "float32": _GATE_SETTINGS | {"compile": False},
    "as run": {},
}
"""For each pass of a proof, the settings that replace those of the run.

The gates use no autocast, because its rounding would hide faults of a strategy. In float32, the rounding of
compiled code would hide them as well, so that gate does not compile.
"""
_GATE_DTYPES: dict[PassKind, torch.dtype] = {"float64": torch.float64, "float32": torch.float32}


class Batches(Protocol):
    """Endless batches of one shard."""

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator that begins with the first batch."""

    def attest(self) -> Facts:
        """Return facts about the batches, at least those that ``ShardOrder.attest`` lists."""


class ShardOrder:
    """The order in which the samples of one shard are trained.

    Each epoch permutes all samples anew, with the same seed on every rank. Shard i of n takes the i-th of n
    equal parts of every global batch, so all shards together train on the batches of a single process. If a
    step has several passes, the shard's part is split into consecutive passes.

    Raises:
        BackendError: the shards do not divide a global batch.
    """

    def __init__(self, shard: tuple[int, int], config: RunConfig, samples: int) -> None:
        self.shard = shard
        """Index of the shard, and number of shards."""
        # Ranks that share a shard train on one larger part, so this may be more than a rank's batch.
        self.size, rest = divmod(config.ranks * config.batch_size_per_rank, shard[1])
        """Samples of this shard in one pass."""
        if rest:
            raise BackendError(
                f"{shard[1]} shards do not divide a global batch of {config.ranks} × "
                f"{config.batch_size_per_rank} samples. Choose another --batch-size."
            )
        self._passes, self._seed, self._samples = config.accumulate, config.seed, samples

    def attest(self, batch: Iterable[torch.Tensor]) -> Facts:
        """Return facts about this order and about a batch, which is given by its tensors."""
        return {
            "samples": self.size,
            "dtype": ", ".join(sorted({str(tensor.dtype) for tensor in batch})),
            "shard": list(self.shard),
            "training_samples": self._samples,
        }

    def indices_of(self, epoch: int) -> torch.Tensor:
        """Return the indices of this shard's samples, shape (passes of the epoch, samples of a pass).

        Samples that do not fill a whole step at the end of the epoch are left out.
        """
        index, count = self.shard
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        order = torch.randperm(self._samples, generator=generator)
        part = self._passes * self.size
        steps = len(order) // (part * count)
        cut = order[: steps * count * part].view(steps, count, part)
        return cut[:, index].contiguous().view(steps * self._passes, self.size)


def shards_in_proof(ranks: int) -> int:
    """Return the number of different shards that the ranks of a proof take; equally many take each.

    Above ``_MOST_SHARDS`` ranks it is the least divisor of their number that is no smaller.
    """
    return next((count for count in range(_MOST_SHARDS, ranks) if ranks % count == 0), ranks)


class Task(ABC):
    """A workload's model, loss and optimizer, with batches and a test, as one rank trains them.

    The gates of a proof cast the model and the batches to the gate's dtype. Outside of them all tensors keep
    their dtypes.
    """

    is_own: bool = False
    """Whether model and loss are the user's own, so that the loss may not be a mean over the samples."""

    def __init__(self, config: RunConfig, device: torch.device, workload: Workload) -> None:
        self.config = config
        self.device = device
        self.workload = workload
        """The workload; a user's has a new model for each task, and new closures if its factory is fast."""
        self.gate_dtype: torch.dtype | None = None
        """Dtype of the model and the batches in a gate of a proof; None elsewhere."""
        self.averages_gradients = True
        """Whether the arm averages gradients; if it does not, ``before_step`` has none to change."""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Return the model on the device, with the parameters that the run's seed gives it.

        Call this only once for each task. For another model, call ``anew`` first, and this on the new task.
        """

    @abstractmethod
    def batches(self, shard: tuple[int, int]) -> Batches:
        """Return the batches of a shard, given as (index, count)."""

    @abstractmethod
    def test_batches(self, shard: tuple[int, int]) -> Iterator[tuple[int, Batch]]:
        """Yield pairs of a number of samples and a batch with so many, for a shard of the test set."""

    @abstractmethod
    def test_batch(self, model: nn.Module, batch: Batch, samples: int) -> tuple[float, float]:
        """Return loss and metric, summed over the samples of a batch; the metric is 0 if there is none."""

    def test(self, model: nn.Module, shard: tuple[int, int], on_batch: Callable[[], None]) -> Evaluation:
        """Test a model on a shard of the test set; ``on_batch`` is called before every batch.

        The shard is given as (index, count). All shards together hold every sample once.
        """
        losses, count = 0.0, 0
        metrics: float = 0  # the built-in models count in whole numbers
        training = model.training
        model.eval()
        for samples, batch in self.test_batches(shard):
            on_batch()
            loss, metric = self.test_batch(model, batch, samples)
            losses, metrics, count = losses + loss, metrics + metric, count + samples
        model.train(training)
        return Evaluation(
            correct=None if self.is_own and self.workload.metric is None else metrics,
            samples=count,
            loss_sum=losses if math.isfinite(losses) else None,
        )

    def anew(self) -> Self:
        """Return a task with a new model and a new state of the user's code."""
        return copy.copy(self)

    def attest(self) -> Facts:
        """Return facts about the task itself, which a rank attests."""
        return {}

    def prepare(self, replica: Replica) -> None:
        """Set the number of passes in a replica's step, and compile the replica if the run compiles."""
        replica.accumulate(self.config.accumulate)
        if self.config.compile:
            replica.compile(compile_in_place)

    @property
    def loss(self) -> Loss:
        """Return the function that computes a model's loss on a batch, in the run's precision."""
        plain_loss = self.workload.loss
        if self.config.precision == "float32":
            return plain_loss

        def loss_in_precision(model: Callable[..., Any], batch: Batch) -> torch.Tensor:
            with self.in_precision():
                return plain_loss(model, batch)

        return loss_in_precision

    def in_precision(self) -> AbstractContextManager[object]:
        """Return a context in which the forward pass and the loss are computed in the run's precision.

        Parameters and gradients keep their dtypes, so any backend can average them.
        """
        enabled = self.config.precision != "float32"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a new optimizer of some of the model's parameters, which is plain SGD in a gate.

        Raises:
            WorkloadError: the user's optimizer holds other parameters as well, such as those of a copy.
        """
        parameters = list(parameters)
        if self.gate_dtype is not None:
            return torch.optim.SGD(_flat_parameters(parameters), lr=_PROOF_RATE)
        optimizer = self.workload.optimizer(parameters)
        given = set(map(id, _flat_parameters(parameters)))
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if others := [parameter for parameter in held if id(parameter) not in given]:
            shapes = ", ".join(str(tuple(parameter.shape)) for parameter in others[:3])
            raise WorkloadError(
                f"{len(others)} of the optimizer's {len(held)} parameters are not the model's (shapes "
                f"{shapes}), but only the model's are trained. Make the optimizer of the parameters that "
                "your function is given."
            )
        return optimizer

    @property
    def make_step(self) -> MakeStep:
        """Return the function that makes the user's own distributed step.

        Raises:
            WorkloadError: the workload has none.
        """
        if self.workload.own_step is None:
            raise WorkloadError("this arm trains by a step of your own. Set own_step in your Workload.")
        return self.workload.own_step

    @property
    def changes_gradients(self) -> bool:
        """Return whether the user has a ``before_step`` and the arm averages gradients for it to change."""
        return self.averages_gradients and self.workload.before_step is not None

    def before_step(self) -> BeforeStep | None:
        """Return a new function to call after the gradients are averaged, before the optimizer's step.

        It changes gradients and sets learning rates as the user's functions do. It counts its calls for the
        schedule, so each replica needs its own. The result is None if there is nothing to do.
        """
        change = self.workload.before_step if self.changes_gradients else None
        schedule = self.workload.schedule
        # A step of the user's own follows the schedule by itself, and so must its gates.
        if self.gate_dtype is not None and not self.workload.own_step:
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

    def rates_at(self, model: nn.Module, steps: int) -> dict[str, float]:
        """Return the learning rate of each parameter after so many steps, by the parameter's name."""
        optimizer = self.make_optimizer(list(model.parameters()))
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        return {
            names[id(parameter)]: float(group["lr"]) * self.factor_at(steps)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

    def factor_at(self, steps: int) -> float:
        """Return the schedule's factor for the learning rates after so many steps; 1 without a schedule."""
        return self.workload.schedule(steps) if self.workload.schedule else 1.0

    def for_proof(self, kind: PassKind) -> Self:
        """Return a new task for one pass of a proof, with the settings and the dtype of that pass.

        Its batches have few samples, and are those of ``shards_in_proof`` ranks, unless the user's
        own code chooses samples by ranks. ``as run`` changes nothing else, so ``end_step`` uses that as well.
        """
        task = self.anew()
        chooses_samples = self.workload.loader is not None or self.workload.own_step is not None
        ranks = self.config.ranks if chooses_samples else shards_in_proof(self.config.ranks)
        size = min(self.config.batch_size_per_rank, max(1, _PROOF_SAMPLES // ranks))
        task.config = msgspec.structs.replace(
            self.config, ranks=ranks, batch_size_per_rank=size, **_PROOF_SETTINGS[kind]
        )
        task.gate_dtype = _GATE_DTYPES.get(kind)
        return task

    def shard_of(self, shard: tuple[int, int]) -> tuple[int, int]:
        """Return index and number of the shard of this task for a rank with such a shard of the training."""
        index, count = shard
        shards = self.shards_of(count)
        return shards[index], max(shards) + 1

    def shards_of(self, count: int) -> list[int]:
        """Return the shard that each of ``count`` ranks takes in a proof, in the order of ranks.

        Where several take the same one, they are drawn at random, so that no host has the same as another.
        Rank 0, whose buffers an arm may broadcast, always has shard 0.
        """
        first, *others = [number % min(count, self.config.ranks) for number in range(count)]
        if count > self.config.ranks:
            random.Random(self.config.seed).shuffle(others)
        return [first, *others]

    def for_proof_of(self, replica: Replica) -> Self:
        """Return a copy of this task with a batch that the replica can divide, and its kind of averaging."""
        parts = replica.parts_per_pass
        multiple = parts // math.gcd(parts, self.config.ranks)
        size = math.ceil(self.config.batch_size_per_rank / multiple) * multiple
        task = copy.copy(self)
        task.config = msgspec.structs.replace(self.config, batch_size_per_rank=size)
        task.averages_gradients = self.averages_gradients and replica.averages_gradients
        return task


def _flat_parameters(given: list[Any]) -> list[nn.Parameter]:
    """Return all parameters of a list of parameters, (name, parameter) pairs and parameter groups."""
    parameters: list[nn.Parameter] = []
    for entry in given:
        if isinstance(entry, dict):
            held = entry["params"]
            parameters += _flat_parameters([held] if isinstance(held, torch.Tensor) else list(held))
        else:
            parameters.append(entry[1] if isinstance(entry, tuple) else entry)
    return parameters

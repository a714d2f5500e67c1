"""Define what a rank trains, apart from how gradients become their mean."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import torch
from torch import nn

from compare.worker.compilation import compile_in_place
from compare.workload import WorkloadError

if TYPE_CHECKING:
    from backends.base import Batch, Facts, Loss, MakeStep, Replica
    from compare.schema.config import RunConfig
    from compare.schema.parity import PassKind
    from compare.schema.results import Evaluation
    from compare.worker.loop import BeforeStep

PROOF_SAMPLES = 8
"""Samples of a proof's step, and at least one for each rank.

A gradient of few samples shows every fault that one of many shows, and costs the reference little.
"""
PROOF_RATE = 0.01
"""Learning rate of the gates, which train by plain SGD."""


def proof_samples(config: RunConfig) -> int:
    """Return the samples of a rank in a step of a proof."""
    return min(config.batch_size_per_rank, max(1, PROOF_SAMPLES // config.ranks))


_GATE = {"optimizer": "sgd", "learning_rate": PROOF_RATE, "precision": "float32"}
PROOF_SETTINGS: dict[PassKind, dict[str, Any]] = {
    "float64": _GATE,
    "float32": _GATE | {"compile": False},
    "as run": {},
}
"""Settings of the passes of a proof.

The gates have no autocast, because its rounding would hide faults of a strategy. In float32 the compiler's
rounding would, too.
"""
PROOF_DTYPES = {"float64": torch.float64, "float32": torch.float32, "as run": torch.float32}


class Batches(Protocol):
    """Endless batches of one shard."""

    def __iter__(self) -> Iterator[Batch]:
        """Begin anew."""

    def attest(self) -> Facts:
        """Return samples, dtype and shard of a batch, and the training samples."""


class Task(ABC):
    """A model, its data, loss, optimizer and test."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        self.config = config
        self.device = device

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Return the model on the device, from the seed's start.

        A task gives its model once. ``anew`` makes another task for another model.
        """

    def anew(self) -> Task:
        """Return the same task with a new model, and with a new state of the user's code."""
        return self

    def prepare(self, replica: Replica) -> None:
        """Set the passes of a step, and compile if the run does."""
        replica.accumulate(self.config.accumulate)
        if self.config.compile:
            replica.compile(compile_in_place)

    @property
    def loss(self) -> Loss:
        """Return the loss of a model on a batch, in its precision."""
        plain = self.plain_loss
        if self.config.precision == "float32":
            return plain

        def precise(model: Callable[..., Any], batch: Batch) -> torch.Tensor:
            with self.in_precision():
                return plain(model, batch)

        return precise

    @property
    @abstractmethod
    def plain_loss(self) -> Loss:
        """Return the loss of a model on a batch, without autocast."""

    def in_precision(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass and its loss.

        Parameters and gradients stay as they are, so any backend can average them.
        """
        if self.config.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    @abstractmethod
    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Make the optimizer of some of the model's parameters."""

    has_own_loader: bool = False
    """Whether the user's own code shards the samples."""

    @property
    def make_step(self) -> MakeStep:
        """Return the user's own distributed step.

        Raises:
            WorkloadError: the task has none.
        """
        raise WorkloadError("this arm trains by a step of your own: set own_step in your Workload")

    has_reference_step: bool = False
    """Whether the user wrote the step of a single process."""

    def make_reference_step(self, model: nn.Module) -> Callable[[list[Batch]], object]:
        """Return the user's step of a single process, which takes the batches of all ranks.

        Raises:
            WorkloadError: the task has none.
        """
        del model
        raise WorkloadError("the workload has no reference_step")

    def before_step(self) -> BeforeStep | None:
        """Return what to do between the average and the step.

        It counts the steps of one replica.
        """
        return None

    @property
    def changes_gradients(self) -> bool:
        """Return whether ``before_step`` changes gradients."""
        return False

    def attest(self) -> Facts:
        """Return facts of the task itself, for people."""
        return {}

    @abstractmethod
    def batches(self, shard: tuple[int, int]) -> Batches:
        """Return the batches of a shard: (index, count)."""

    @abstractmethod
    def test(self, model: nn.Module, shard: tuple[int, int], on_batch: Callable[[], None]) -> Evaluation:
        """Test a model on a shard; ``on_batch`` is called before every batch."""

    is_own: bool = False
    """Whether model and loss are the user's own; built-in losses are means over samples."""

    @abstractmethod
    def for_end(self) -> Task:
        """Return the same task, as the step after the training takes it: with few samples."""

    def rates_at(self, model: nn.Module, steps: int) -> dict[str, float]:
        """Return the learning rate of each parameter after so many steps, by name."""
        optimizer = self.make_optimizer(list(model.parameters()))
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        return {
            names[id(parameter)]: float(group["lr"]) * self.factor_at(steps)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

    def factor_at(self, steps: int) -> float:
        """Return the schedule's factor of the learning rates after so many steps."""
        del steps
        return 1.0

    @abstractmethod
    def for_proof(self, kind: PassKind) -> Task:
        """Return the same task, as a pass of the proof trains it."""

    def for_proof_of(self, replica: Replica) -> Task:
        """Return the same task, its global batch divisible by a pass's parts."""
        parts = replica.parts_per_pass
        multiple = parts // math.gcd(parts, self.config.ranks)
        size = math.ceil(self.config.batch_size_per_rank / multiple) * multiple
        task = copy.copy(self)
        task.config = msgspec.structs.replace(self.config, batch_size_per_rank=size)
        return task

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
"""Samples of all ranks together in a proof's step; each rank takes one or more.

A gradient of few samples shows every fault that a gradient of many shows, and costs the reference little.
"""
PROOF_RATE = 0.01
"""Learning rate of the gates, which train by plain SGD."""


def proof_samples(config: RunConfig) -> int:
    """Return how many samples a rank takes in each pass of a proof's step."""
    return min(config.batch_size_per_rank, max(1, PROOF_SAMPLES // config.ranks))


_GATE = {"optimizer": "sgd", "learning_rate": PROOF_RATE, "precision": "float32"}
PROOF_SETTINGS: dict[PassKind, dict[str, Any]] = {
    "float64": _GATE,
    "float32": _GATE | {"compile": False},
    "as run": {},
}
"""Settings of the run that each pass of a proof replaces.

The gates have no autocast, because its rounding would hide faults of a strategy. The rounding of compiled
code would hide them as well in float32, so that gate does not compile.
"""
PROOF_DTYPES = {"float64": torch.float64, "float32": torch.float32, "as run": torch.float32}


class Batches(Protocol):
    """Endless batches of one shard."""

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator that begins with the first batch."""

    def attest(self) -> Facts:
        """Return samples, dtype and shard of a batch, and the number of training samples."""


class Task(ABC):
    """What a rank trains: a model with its data, loss, optimizer and test."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        self.config = config
        self.device = device

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Return the model on the device, with the parameters that the run's seed gives.

        A task gives its model only once. For another model, call ``anew`` first, and build on the new task.
        """

    def anew(self) -> Task:
        """Return a task with a new model and a new state of the user's code; itself if built in."""
        return self

    def prepare(self, replica: Replica) -> None:
        """Set the passes of a replica's step, and compile the replica if the run compiles."""
        replica.accumulate(self.config.accumulate)
        if self.config.compile:
            replica.compile(compile_in_place)

    @property
    def loss(self) -> Loss:
        """Return the function that computes a model's loss on a batch, in the run's precision."""
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
        """Return the function that computes a model's loss on a batch, without autocast."""

    def in_precision(self) -> AbstractContextManager[object]:
        """Return a context in which forward pass and loss have the run's precision.

        Parameters and gradients keep their dtypes, so any backend can average them.
        """
        if self.config.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    @abstractmethod
    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a new optimizer of some of the model's parameters."""

    has_own_loader: bool = False
    """Whether the user's own code shards the samples."""

    @property
    def make_step(self) -> MakeStep:
        """Return the function that makes the user's own distributed step.

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
        """Return a new function to call between the average and the optimizer's step, or None.

        It counts its calls for the schedule, so each replica needs one of its own.
        """
        return None

    @property
    def changes_gradients(self) -> bool:
        """Return whether ``before_step`` changes gradients."""
        return False

    def attest(self) -> Facts:
        """Return facts about the task itself, for the attestation."""
        return {}

    @abstractmethod
    def batches(self, shard: tuple[int, int]) -> Batches:
        """Return the batches of a shard, given as (index, count)."""

    @abstractmethod
    def test(self, model: nn.Module, shard: tuple[int, int], on_batch: Callable[[], None]) -> Evaluation:
        """Return a model's results on a shard of the test set; ``on_batch`` is called before every batch."""

    is_own: bool = False
    """Whether model and loss are the user's own; only built-in losses are sure to be means over samples."""

    @abstractmethod
    def for_end(self) -> Task:
        """Return a new task for the step after the training, with as few samples as in a proof."""

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
        """Return a new task for a pass of the proof, with that pass's settings and dtype and few samples."""

    def for_proof_of(self, replica: Replica) -> Task:
        """Return a copy of this task, with a global batch that the replica can divide into its parts."""
        parts = replica.parts_per_pass
        multiple = parts // math.gcd(parts, self.config.ranks)
        size = math.ceil(self.config.batch_size_per_rank / multiple) * multiple
        task = copy.copy(self)
        task.config = msgspec.structs.replace(self.config, batch_size_per_rank=size)
        return task

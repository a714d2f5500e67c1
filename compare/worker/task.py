"""Define what a rank trains, apart from how gradients become their mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from compare.worker.compilation import compile_in_place

if TYPE_CHECKING:
    from backends.base import Batch, Facts, Loss, Replica
    from compare.schema.config import RunConfig
    from compare.schema.results import Evaluation, PassKind
    from compare.worker.loop import BeforeStep

PROOF_SAMPLES = 8
"""Samples of a proof's step, and at least one for each rank.

A gradient of few samples shows every fault that one of many shows, and costs the reference little.
"""
PROOF_RATE = 0.01
"""Learning rate of the gates, which train by plain SGD."""
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
        """Return a new model on the device, from the seed's start."""

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
    def make_optimizer(self, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        """Make the optimizer of some of the model's parameters."""

    def before_step(self) -> BeforeStep | None:
        """Return what to do between the average and the step.

        It counts the steps of one replica.
        """
        return None

    @abstractmethod
    def batches(self, shard: tuple[int, int]) -> Batches:
        """Return the batches of a shard: (index, count)."""

    @abstractmethod
    def test(self, model: nn.Module, shard: tuple[int, int], on_batch: Callable[[], None]) -> Evaluation:
        """Test a model on a shard; ``on_batch`` is called before every batch."""

    @abstractmethod
    def for_proof(self, kind: PassKind) -> Task:
        """Return the same task, as a pass of the proof trains it."""

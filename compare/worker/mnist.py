"""Train the built-in models on MNIST, from tensors in memory."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import nn

from compare import data
from compare.schema.results import Evaluation
from compare.worker.batches import PixelBatches, as_tensors, normalise
from compare.worker.loop import evaluate
from compare.worker.models import build_model, classify, optimizer_maker
from compare.worker.task import PROOF_DTYPES, PROOF_SETTINGS, Task, proof_samples

if TYPE_CHECKING:
    from backends.base import Loss
    from compare.data import DatasetSource
    from compare.schema.config import RunConfig
    from compare.schema.parity import PassKind


class MnistTask(Task):
    """A built-in model on MNIST, or on scikit-learn's digits in the same form."""

    def __init__(
        self,
        config: RunConfig,
        dataset: DatasetSource,
        images: torch.Tensor,
        labels: torch.Tensor,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(config, images.device)
        self._dataset = dataset
        self._images, self._labels = images, labels
        self._dtype = dtype
        self._start: nn.Module | None = None
        self._make_optimizer = optimizer_maker(config)

    @classmethod
    def load(cls, config: RunConfig, dataset: DatasetSource, device: torch.device) -> MnistTask:
        """Load the training set onto the device, and return its task.

        Raises:
            DataError: the data set is damaged.
        """
        images, labels = as_tensors(*data.load_split(dataset, "train"), device)
        if device.type == "cuda":
            images = normalise(images)  # GPU memory is fast, and two more kernels a step cost more
        return cls(config, dataset, images, labels)

    def build_model(self) -> nn.Module:
        if self._start is None:
            torch.manual_seed(self.config.seed)
            self._start = build_model(self.config.model).to(self.device, self._dtype)
        return copy.deepcopy(self._start)

    @property
    def plain_loss(self) -> Loss:
        return classify

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return self._make_optimizer(parameters)

    def batches(self, shard: tuple[int, int]) -> PixelBatches:
        return PixelBatches(self._images, self._labels, shard, self.config, self._dtype)

    def test(self, model: nn.Module, shard: tuple[int, int], on_batch: Callable[[], None]) -> Evaluation:
        on_batch()
        images, labels = as_tensors(*data.load_split(self._dataset, "test"), self.device)
        correct, samples, loss_sum = evaluate(model, normalise(images), labels, shard, on_batch)
        return Evaluation(
            correct=correct, samples=samples, loss_sum=loss_sum if math.isfinite(loss_sum) else None
        )

    def for_end(self) -> MnistTask:
        config = msgspec.structs.replace(self.config, batch_size_per_rank=proof_samples(self.config))
        return MnistTask(config, self._dataset, self._images, self._labels)

    def for_proof(self, kind: PassKind) -> MnistTask:
        size = proof_samples(self.config)
        config = msgspec.structs.replace(self.config, batch_size_per_rank=size, **PROOF_SETTINGS[kind])
        return MnistTask(config, self._dataset, self._images, self._labels, dtype=PROOF_DTYPES[kind])

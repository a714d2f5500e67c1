"""Train the built-in models on MNIST, from tensors in memory: models, loss, optimizers and test."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils.data import TensorDataset

from backends.base import BackendError
from compare import data
from compare.data.models import CLASSES, layer_widths
from compare.worker.batches import PixelBatches, as_tensors, normalise
from compare.worker.randomness import same_randomness
from compare.worker.task import Task
from compare.workload import Workload

if TYPE_CHECKING:
    from backends.base import Batch
    from compare.data import DatasetSource
    from compare.schema.config import RunConfig

EVALUATION_BATCH = 1000
loss_function = nn.functional.cross_entropy


def classify(model: Callable[..., torch.Tensor], batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the mean cross-entropy of a classifier on a batch of inputs and targets."""
    inputs, targets = batch
    return loss_function(model(inputs), targets)


def build_model(name: str) -> nn.Module:
    """Build a model that maps (batch, 784) pixels to (batch, 10) logits.

    Args:
        name: ``mlp`` (784-256-10), ``wide`` (784-4096-4096-10) or ``mlp:`` with widths of your own.
            ``convnet`` is the network of pytorch/examples' mnist.

    Raises:
        ValueError: no model has this name.
    """
    if name == "convnet":
        return nn.Sequential(
            nn.Unflatten(1, (1, 28, 28)),
            *(nn.Conv2d(1, 32, 3), nn.ReLU()),
            *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Dropout(0.25), nn.Flatten()),
            *(nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5)),
            nn.Linear(128, CLASSES),
        )
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(layer_widths(name)):
        layers += [nn.ReLU(), nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers[1:])


def optimizer_maker(config: RunConfig) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    """Return a function that makes the run's optimizer of given parameters, without hooks."""
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    make: Callable[..., torch.optim.Optimizer] = without_hooks(kinds[config.optimizer])
    return lambda parameters: make(parameters, lr=config.learning_rate)


@cache
def without_hooks(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return a subclass of an optimizer, with torch's own ``step`` but without the wrapper around it.

    torch wraps the ``step`` of an optimizer class for hooks and for a profiler's label. The wrapper takes
    nearly as long as the MLP's update. Registering a step hook raises ``BackendError``. Horovod derives a
    class from this one, and torch wraps the ``step`` of that class.
    """
    step = inspect.unwrap(kind.step, stop=lambda function: not hasattr(function, "hooked"))

    def plain_step(self: torch.optim.Optimizer, closure: Callable[[], float] | None = None) -> float | None:
        return step(self, closure)

    def refuse(_: torch.optim.Optimizer, hook: object) -> None:
        raise BackendError(
            f"Optimizers of a run call no hooks, so {getattr(hook, '__name__', hook)} would never be called. "
            "Call it in the replica's step() instead."
        )

    plain_step.hooked = True  # type: ignore[attr-defined]  # so that torch does not wrap it
    members = {"step": plain_step, "register_step_pre_hook": refuse, "register_step_post_hook": refuse}
    return type(kind.__name__, (kind,), members)


class MnistTask(Task):
    """A built-in model on MNIST, or on scikit-learn's digits in the same form."""

    def __init__(
        self, config: RunConfig, dataset: DatasetSource, images: torch.Tensor, labels: torch.Tensor
    ) -> None:
        with same_randomness(images.device, config.seed):
            model = build_model(config.model)
        samples, make_optimizer = TensorDataset(images, labels), optimizer_maker(config)
        workload = Workload(model=model, data=samples, loss=classify, optimizer=make_optimizer)
        super().__init__(config, images.device, workload)
        self._dataset = dataset
        self._images, self._labels = images, labels

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
        return copy.deepcopy(self.workload.model).to(self.device, self.gate_dtype)

    def batches(self, shard: tuple[int, int]) -> PixelBatches:
        return PixelBatches(self._images, self._labels, shard, self.config, self.gate_dtype)

    def test_batches(self, shard: tuple[int, int]) -> Iterator[tuple[int, Batch]]:
        index, count = shard
        images, labels = as_tensors(*data.load_split(self._dataset, "test"), self.device)
        inputs, targets = normalise(images[index::count]), labels[index::count]
        for batch in zip(inputs.split(EVALUATION_BATCH), targets.split(EVALUATION_BATCH), strict=True):
            yield len(batch[1]), batch

    @torch.no_grad()
    def test_batch(self, model: nn.Module, batch: Batch, samples: int) -> tuple[float, float]:
        del samples
        inputs, targets = batch
        logits = model(inputs)
        right = int((logits.argmax(1) == targets).sum())
        return loss_function(logits, targets, reduction="sum").item(), right

"""Train the built-in models on MNIST or the digits: models, loss, optimizers, batches and test."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from backends.base import BackendError, Batch
from compare import data
from compare.data import DatasetSource
from compare.data.models import CLASSES, PIXELS, layer_widths
from compare.schema.config import RunConfig
from compare.worker.randomness import same_randomness
from compare.worker.task import ShardOrder, Task
from compare.workload import Workload

EVALUATION_BATCH = 1000
"""Number of samples in a batch of the test."""
loss_function = nn.functional.cross_entropy
# Mean and standard deviation of MNIST's training pixels, as in every tutorial.
MEAN, DEVIATION = 0.1307, 0.3081
_SCALE, _SHIFT = 1 / (255 * DEVIATION), torch.tensor(-MEAN / DEVIATION)

_BYTES_FETCHED_AT_ONCE = 400_000
"""Bytes of pixels that are fetched by one call, which may be several small batches.

One call for each batch would slow down the fastest arms with the MLP.
"""


def classify(model: Callable[..., torch.Tensor], batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the mean cross-entropy of a classifier on a batch of inputs and targets."""
    inputs, targets = batch
    return loss_function(model(inputs), targets)


def build_model(name: str) -> nn.Module:
    """Return a new model that maps (batch, 784) pixels to (batch, 10) logits.

    Args:
        name: ``mlp`` (784-256-10), ``wide`` (784-4096-4096-10), ``mlp:`` with widths of your own, or
            ``convnet``, the network of pytorch/examples' mnist.

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
    """Return a function that makes the run's optimizer, without step hooks, for given parameters."""
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    make: Callable[..., torch.optim.Optimizer] = without_hooks(kinds[config.optimizer])
    return lambda parameters: make(parameters, lr=config.learning_rate)


@cache
def without_hooks(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return a subclass of an optimizer class whose ``step`` calls no hooks.

    torch wraps the ``step`` of an optimizer class for hooks and for a profiler's label. The wrapper takes
    nearly as long as the MLP's update. Registering a step hook raises ``BackendError``. Horovod derives a
    class from this one, and torch wraps the ``step`` of that class again.
    """
    step = inspect.unwrap(kind.step, stop=lambda function: not hasattr(function, "hooked"))

    def plain_step(self: torch.optim.Optimizer, closure: Callable[[], float] | None = None) -> float | None:
        return step(self, closure)

    def refuse(_: torch.optim.Optimizer, hook: object) -> None:
        raise BackendError(
            f"Optimizers of a run call no hooks, so {getattr(hook, '__name__', hook)} would never be called. "
            "Call it in step() of the arm's Replica instead."
        )

    plain_step.hooked = True  # type: ignore[attr-defined]  # so that torch does not wrap it
    members = {"step": plain_step, "register_step_pre_hook": refuse, "register_step_post_hook": refuse}
    return type(kind.__name__, (kind,), members)


# ---- the data ----


def as_tensors(
    images: np.ndarray, labels: np.ndarray, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images as a uint8 tensor, shape (n, 784), and labels as int64, shape (n,), on the device.

    Tensors that stay in memory make the loop fast, while the published example decodes and normalises each
    image in every epoch. Bytes take a quarter of the memory and the bandwidth of float32.
    """
    pixels = torch.from_numpy(images).view(len(images), PIXELS).to(device)
    return pixels, torch.from_numpy(labels).to(device, torch.int64)


def normalise(pixels: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return pixels as float32, with mean 0 and deviation 1 over MNIST; in ``out`` if it is given."""
    out = torch.empty_like(pixels, dtype=torch.float32) if out is None else out
    # One pass converts and one computes, because a pass that does both takes longer. A pixel must have the
    # same bits at every place of a batch; a test checks it.
    return torch.add(_SHIFT, out.copy_(pixels), alpha=_SCALE, out=out)


class PixelBatches:
    """Endless batches of one shard of the training set: pixels (batch size, 784) and labels.

    On a CPU, uint8 pixels are fetched for several batches at once, and normalised batch by batch. Images of
    another dtype are not normalised. Each batch overwrites the pixels of the one before, because a persistent
    buffer needs no allocation. Only a proof gives a ``dtype``, for which each batch is copied.
    """

    def __init__(
        self,
        images: torch.Tensor,
        labels: torch.Tensor,
        shard: tuple[int, int],
        config: RunConfig,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._images, self._labels = images, labels
        self._dtype = dtype
        self._order = ShardOrder(shard, config, len(images))
        raw, on_cpu = images.dtype == torch.uint8, images.device.type == "cpu"
        at_once = max(1, _BYTES_FETCHED_AT_ONCE // (self._order.size * PIXELS)) if raw and on_cpu else 1
        shape = (at_once, self._order.size, PIXELS)
        self._fetched = torch.empty(shape, dtype=images.dtype, device=images.device)
        self._inputs = torch.empty_like(self._fetched[0], dtype=torch.float32) if raw else self._fetched[0]

    def attest(self) -> dict[str, object]:
        """Return the facts that ``ShardOrder.attest`` lists."""
        return self._order.attest([self._inputs])

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        fetch, inputs, epoch = self._fetcher(), self._inputs, 0
        fetched = self._fetched.unbind()
        raw = self._fetched.dtype == torch.uint8
        while True:
            indices_of_epoch = self._order.indices_of(epoch).to(self._images.device)
            # The labels of a whole epoch fit in memory in their order.
            targets = iter(self._labels[indices_of_epoch])
            for indices in self._split(indices_of_epoch):
                fetch(indices)
                for images, labels in zip(fetched, targets, strict=False):  # the last fetch may be shorter
                    if raw:
                        normalise(images, out=inputs)
                    yield (inputs if self._dtype is None else inputs.to(self._dtype)), labels
            epoch += 1

    def _fetcher(self) -> Callable[[Any], object]:
        """Return a function that copies the images of some indices, an item of ``_split``, to the buffer."""
        if self._images.device.type != "cpu":
            return partial(torch.index_select, self._images, 0, out=self._fetched[0])
        # NumPy's take is faster than torch's index_select. No index is out of range, but without "clip" it
        # copies through another buffer.
        take, fetched = self._images.numpy().take, self._fetched.numpy()
        return lambda indices: take(indices, 0, fetched[: len(indices)], "clip")

    def _split(self, indices_of_epoch: torch.Tensor) -> Iterator[Any]:
        """Return the indices of each fetch: those of several batches on a CPU, of one batch on a GPU."""
        if indices_of_epoch.device.type != "cpu":
            return iter(indices_of_epoch)
        indices, at_once = indices_of_epoch.numpy(), len(self._fetched)
        return (indices[begin : begin + at_once] for begin in range(0, len(indices), at_once))


# ---- the task ----


class MnistTask(Task):
    """The task of a built-in model, which trains on MNIST or on scikit-learn's digits in the same form."""

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
        """Load the training set onto the device, and return the task that trains on it.

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

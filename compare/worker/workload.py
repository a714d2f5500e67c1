"""What is trained: the models, their optimizers, and the order in which the samples come."""

from __future__ import annotations

import inspect
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from backends.base import BackendError
from compare.schema.workload import CLASSES, PIXELS, layer_widths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from compare.schema.config import RunConfig

# Mean and standard deviation of MNIST's training pixels, as every tutorial has them.
MEAN, DEVIATION = 0.1307, 0.3081
_SCALE, _SHIFT = 1 / (255 * DEVIATION), torch.tensor(-MEAN / DEVIATION)

_BYTES_FETCHED_AT_ONCE = 400_000
"""Of pixels, that is several small batches: a call for each of them is felt, in the MLP's quickest arms."""

loss_function = nn.functional.cross_entropy


def build_model(name: str, *, dropout: bool = True) -> nn.Module:
    """Build a model that maps (batch, 784) pixels to (batch, 10) logits.

    Args:
        name: ``mlp`` (784-256-10), ``wide`` (784-4096-4096-10: 80 MB of float32 gradients), ``mlp:`` and
            widths of your own, or ``convnet`` (the network of pytorch/examples' mnist).
        dropout: whether the convnet drops; parity needs it not to.

    Raises:
        ValueError: there is no such model.
    """
    if name == "convnet":
        return nn.Sequential(
            nn.Unflatten(1, (1, 28, 28)),
            *(nn.Conv2d(1, 32, 3), nn.ReLU()),
            *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Dropout(0.25 if dropout else 0.0), nn.Flatten()),
            *(nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5 if dropout else 0.0)),
            nn.Linear(128, CLASSES),
        )
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(layer_widths(name)):
        layers += [nn.ReLU(), nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers[1:])


def optimizer_maker(config: RunConfig) -> Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]:
    """Return what makes the run's optimizer for the parameters it is given. Its own steps call no hooks."""
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    make: Callable[..., torch.optim.Optimizer] = _without_hooks(kinds[config.optimizer])
    return lambda parameters: make(parameters, lr=config.learning_rate)


@cache
def _without_hooks(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Derive a class whose ``step`` is torch's own, without what torch puts around it.

    The first time that an optimizer class is made use of, torch wraps its ``step``, for hooks and for a
    profiler's label. That takes 70 us a step, 4 % of the MLP's in the quickest arm; the update itself, 100
    (two ranks, AMD EPYC). The class that Horovod derives in turn has a ``step`` that torch wraps.
    """
    step = inspect.unwrap(kind.step, stop=lambda function: not hasattr(function, "hooked"))

    def plain_step(self: torch.optim.Optimizer, closure: Callable[[], float] | None = None) -> float | None:
        return step(self, closure)

    def refuse(_: torch.optim.Optimizer, hook: object) -> None:
        raise BackendError(
            f"a run's optimizer steps without hooks, so {hook} would not be called: "
            "call it in the replica's step() instead"
        )

    plain_step.hooked = True  # type: ignore[attr-defined]  # which tells torch that this was done
    members = {"step": plain_step, "register_step_pre_hook": refuse, "register_step_post_hook": refuse}
    return type(kind.__name__, (kind,), members)


def as_tensors(
    images: np.ndarray, labels: np.ndarray, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Put (n, 28, 28) uint8 images on ``device`` as (n, 784) pixels, still uint8, and labels as (n,) int64.

    Resident tensors are what makes the loop fast: the published example decodes and normalises image by
    image, in every epoch. As bytes they take a quarter of the memory and of the way from there.
    """
    pixels = torch.from_numpy(images).view(len(images), PIXELS).to(device)
    return pixels, torch.from_numpy(labels).to(device, torch.int64)


def normalise(pixels: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Bring pixels of 0 to 255 to a mean of 0 and a deviation of 1, as float32 of the same shape."""
    out = torch.empty_like(pixels, dtype=torch.float32) if out is None else out
    # A pass that only converts and one that only computes: one that does both takes longer than the two. A
    # pixel must come out the same to the bit wherever in a batch it stands, which a test looks at.
    return torch.add(_SHIFT, out.copy_(pixels), alpha=_SCALE, out=out)


class Batches:
    """An endless walk over the training set, one shard's part of every global batch.

    Each epoch is a fresh permutation, the same on every rank because its seed is: rank r of n takes
    the r-th of the n equal parts of every global batch, so that together the shards are exactly the
    batches of a single process. Where a step has several passes, a part is cut once more, in that order.

    Pixels, that is bytes, are fetched for some batches at once, and normalised batch by batch; images of
    another dtype are taken as they are. The inputs that come out are overwritten by the next step: a
    persistent buffer costs no allocation.
    """

    def __init__(
        self, images: torch.Tensor, labels: torch.Tensor, shard: tuple[int, int], config: RunConfig
    ) -> None:
        self._images, self._labels = images, labels
        self._index, self._count = shard
        # Not one rank's batch: ranks that share a shard train on the same, larger part.
        self._size, rest = divmod(config.ranks * config.batch_size_per_rank, self._count)
        if rest:
            raise BackendError(
                f"{self._count} shards do not divide a batch of {config.ranks} × "
                f"{config.batch_size_per_rank} samples: choose another --batch-size"
            )
        self._passes = config.accumulate
        self._seed = config.seed
        raw, on_cpu = images.dtype == torch.uint8, images.device.type == "cpu"
        at_once = max(1, _BYTES_FETCHED_AT_ONCE // (self._size * PIXELS)) if raw and on_cpu else 1
        shape = (at_once, self._size, PIXELS)
        self._fetched = torch.empty(shape, dtype=images.dtype, device=images.device)
        self._inputs = torch.empty_like(self._fetched[0], dtype=torch.float32) if raw else self._fetched[0]

    def attest(self) -> dict[str, object]:
        """Say what one batch is, as its buffers are."""
        return {
            "samples": len(self._inputs),
            "dtype": str(self._inputs.dtype),
            "shard": [self._index, self._count],
            "training_samples": len(self._images),
        }

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        fetch, inputs, epoch = self._fetcher(), self._inputs, 0
        fetched = self._fetched.unbind()
        raw = self._fetched.dtype == torch.uint8
        while True:
            parts = self._shard_of(epoch)
            # Labels are few enough to be put in order for an epoch at once.
            targets = iter(self._labels[parts])
            for indices in self._cut(parts):
                fetch(indices)
                for images, labels in zip(fetched, targets, strict=False):  # there may be fewer in the end
                    if raw:
                        normalise(images, out=inputs)
                    yield inputs, labels
            epoch += 1

    def _fetcher(self) -> Callable[[Any], object]:
        """Return what copies images, given indices as ``_cut`` has them, to where they are fetched."""
        if self._images.device.type != "cpu":
            return partial(torch.index_select, self._images, 0, out=self._fetched[0])
        # In training the MLP on one thread, torch's index_select takes 65 us for a batch of 64, this takes 40
        # (Intel Xeon). Every index is there; without "clip", take() would copy by way of another buffer.
        take, fetched = self._images.numpy().take, self._fetched.numpy()
        return lambda indices: take(indices, 0, fetched[: len(indices)], "clip")

    def _cut(self, parts: torch.Tensor) -> Iterator[Any]:
        """Cut the parts of an epoch into as many as are fetched at once; on a device they come singly."""
        if parts.device.type != "cpu":
            return iter(parts)
        indices, at_once = parts.numpy(), len(self._fetched)
        return (indices[begin : begin + at_once] for begin in range(0, len(indices), at_once))

    def _shard_of(self, epoch: int) -> torch.Tensor:
        """Indices of this shard's samples, shape (passes per epoch, batch size)."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        order = torch.randperm(len(self._images), generator=generator)
        part = self._passes * self._size
        steps = len(order) // (part * self._count)
        cut = order[: steps * self._count * part].view(steps, self._count, part)
        mine = cut[:, self._index].contiguous().view(steps * self._passes, self._size)
        return mine.to(self._images.device)

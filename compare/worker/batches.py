"""Fetch the samples of a shard, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from backends.base import BackendError
from compare.data.models import PIXELS
from compare.schema.config import RunConfig

# Mean and standard deviation of MNIST's training pixels, as in every tutorial.
MEAN, DEVIATION = 0.1307, 0.3081
_SCALE, _SHIFT = 1 / (255 * DEVIATION), torch.tensor(-MEAN / DEVIATION)

_BYTES_FETCHED_AT_ONCE = 400_000
"""Bytes of pixels that one call fetches, which may be several small batches.

A call for each batch would slow down the fastest arms with the MLP.
"""


def as_tensors(
    images: np.ndarray, labels: np.ndarray, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return uint8 images, shape (n, 784), and int64 labels, shape (n,), on the device.

    Tensors that stay in memory make the loop fast, while the published example decodes and normalises each
    image in every epoch. Bytes take a quarter of the memory and the bandwidth of float32.
    """
    pixels = torch.from_numpy(images).view(len(images), PIXELS).to(device)
    return pixels, torch.from_numpy(labels).to(device, torch.int64)


def normalise(pixels: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return pixels as float32, scaled so that MNIST has mean 0 and deviation 1; in ``out`` if given."""
    out = torch.empty_like(pixels, dtype=torch.float32) if out is None else out
    # One pass converts and one computes, because a pass that does both takes longer. A pixel must have the
    # same bits at every place of a batch; a test checks it.
    return torch.add(_SHIFT, out.copy_(pixels), alpha=_SCALE, out=out)


class ShardOrder:
    """The order in which one shard's samples are trained.

    Each epoch permutes all samples anew, with the same seed on every rank. Shard i of n takes the i-th of n
    equal parts of every global batch, so all shards together are the batches of a single process. If a step
    has several passes, a shard's part is split into consecutive passes.

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

    def of_epoch(self, epoch: int) -> torch.Tensor:
        """Return the indices of this shard's samples, shape (passes of the epoch, samples of a pass).

        Samples beyond the last whole step are left out.
        """
        index, count = self.shard
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        order = torch.randperm(self._samples, generator=generator)
        part = self._passes * self.size
        steps = len(order) // (part * count)
        cut = order[: steps * count * part].view(steps, count, part)
        return cut[:, index].contiguous().view(steps * self._passes, self.size)


class PixelBatches:
    """Endless batches of one shard of the training set: pixels (batch size, 784) and labels.

    On a CPU, uint8 pixels are fetched for several batches at once, and normalised batch by batch. Images of
    another dtype are not normalised. The next batch overwrites the pixels of this one, because a persistent
    buffer needs no allocation. ``dtype`` None is float32; only a proof asks for another, which takes a copy.
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
        """Return samples, dtype and shard of a batch, and the number of training samples."""
        return {
            "samples": len(self._inputs),
            "dtype": str(self._inputs.dtype),
            "shard": list(self._order.shard),
            "training_samples": len(self._images),
        }

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        fetch, inputs, epoch = self._fetcher(), self._inputs, 0
        fetched = self._fetched.unbind()
        raw = self._fetched.dtype == torch.uint8
        while True:
            parts = self._order.of_epoch(epoch).to(self._images.device)
            # The labels of a whole epoch fit in memory in their order.
            targets = iter(self._labels[parts])
            for indices in self._cut(parts):
                fetch(indices)
                for images, labels in zip(fetched, targets, strict=False):  # the last fetch may be shorter
                    if raw:
                        normalise(images, out=inputs)
                    yield (inputs if self._dtype is None else inputs.to(self._dtype)), labels
            epoch += 1

    def _fetcher(self) -> Callable[[Any], object]:
        """Return a function that copies the images of one item of ``_cut`` into the buffer."""
        if self._images.device.type != "cpu":
            return partial(torch.index_select, self._images, 0, out=self._fetched[0])
        # NumPy's take is faster than torch's index_select. No index is out of range, but without "clip" it
        # copies through another buffer.
        take, fetched = self._images.numpy().take, self._fetched.numpy()
        return lambda indices: take(indices, 0, fetched[: len(indices)], "clip")

    def _cut(self, parts: torch.Tensor) -> Iterator[Any]:
        """Return the indices of each fetch: those of several batches on a CPU, of one batch on a GPU."""
        if parts.device.type != "cpu":
            return iter(parts)
        indices, at_once = parts.numpy(), len(self._fetched)
        return (indices[begin : begin + at_once] for begin in range(0, len(indices), at_once))

"""Yield the batches of a workload's shard, from its data or its own loader."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from contextlib import contextmanager
from itertools import chain, count
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from compare.worker.batches import ShardOrder
from compare.worker.randomness import same_randomness, seed_generators
from compare.worker.trees import move, place_of_samples, shapes_of, tensors_of
from compare.workload import Workload, WorkloadError

if TYPE_CHECKING:
    from backends.base import Batch, Facts
    from compare.schema.config import RunConfig


class SampleBatches:
    """Endless batches of one shard, collated from the samples of the workload's data."""

    def __init__(
        self,
        workload: Workload,
        shard: tuple[int, int],
        config: RunConfig,
        device: torch.device,
        dtype: torch.dtype | None,
    ) -> None:
        self._data = workload.data
        self._collate = workload.collate or default_collate
        self._order = ShardOrder(shard, config, len(sized(workload.data)))
        self._device, self._dtype = device, dtype

    def attest(self) -> Facts:
        """Return samples, dtypes and shard of a batch, and the number of training samples."""
        with same_randomness(torch.device("cpu")):
            batch = self._collate([self._data[0]])
        return {
            "samples": self._order.size,
            "dtype": ", ".join(sorted({str(t.dtype) for t in tensors_of(batch)})),
            "shard": list(self._order.shard),
            "training_samples": len(sized(self._data)),
        }

    def __iter__(self) -> Iterator[Batch]:
        loader = DataLoader(
            self._data,  # type: ignore[arg-type]  # it needs only len() and an index
            batch_sampler=self._indices(),
            collate_fn=self._collate,
            generator=torch.Generator(),
        )  # type: ignore[arg-type]
        for batch in loader:
            yield move(batch, self._device, self._dtype)

    def _indices(self) -> Iterator[list[int]]:
        """Yield the indices of each batch, without end."""
        for epoch in count():
            yield from self._order.of_epoch(epoch).tolist()


class LoaderBatches:
    """Endless batches of one shard, from the user's own loader.

    Batches of another size than the loader was asked for, such as a smaller last one, are left out.
    """

    def __init__(
        self,
        workload: Workload,
        shard: tuple[int, int],
        config: RunConfig,
        device: torch.device,
        dtype: torch.dtype | None,
    ) -> None:
        assert workload.loader  # noqa: S101 -- the task chose this class by it
        self._size = config.ranks * config.batch_size_per_rank // shard[1]
        with _seeded(config.seed):
            self._loader = workload.loader(*shard, self._size)
        self._place: tuple[int, int] | None = None
        self._samples = len(sized(workload.data))
        self._shard, self._seed = shard, config.seed
        self._device, self._dtype = device, dtype

    def attest(self) -> Facts:
        """Return the facts of a batch, the samples of an epoch, and the loader's number of workers.

        The samples of an epoch are None if the loader has no length.
        """
        batch = self._first(0)[0]
        try:
            whole = len(self._loader) * self._size  # type: ignore[arg-type]
        except TypeError:  # a stream has no length, and its DataLoader raises
            whole = None
        return {
            "samples": self._size,
            "dtype": ", ".join(sorted({str(t.dtype) for t in tensors_of(batch)})),
            "shard": list(self._shard),
            "training_samples": self._samples,
            "samples_of_an_epoch": whole,
            "loader_workers": getattr(self._loader, "num_workers", 0),
        }

    def __iter__(self) -> Iterator[Batch]:
        for epoch in count():
            first, rest = self._first(epoch)
            for batch in chain([first], rest):
                if self._is_whole(batch):
                    yield move(batch, self._device, self._dtype)

    def _first(self, epoch: int) -> tuple[Batch, Iterator[Batch]]:
        """Seed and begin an epoch, and return its first batch and an iterator over the others.

        Raises:
            WorkloadError: the loader does not begin with a batch of the size that it was asked for.
        """
        sampler = getattr(self._loader, "sampler", None)
        if sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        with _seeded(self._seed * 1_000_003 + epoch):
            batches = iter(self._loader)
            first = next(batches, None)
        if first is None or not self._is_whole(first):
            raise WorkloadError(
                f"the loader of shard {self._shard} does not begin with {self._size} samples. "
                "Yield batches of that size, its third argument, and begin each epoch anew."
            )
        return first, batches

    def _is_whole(self, batch: Batch) -> bool:
        """Return whether a batch has as many samples as the loader was asked for.

        A batch without tensors counts as whole.
        """
        shapes = shapes_of(batch)
        self._place = self._place or place_of_samples(shapes, self._size)
        if not shapes or self._place is None:
            return not shapes
        index, dimension = self._place
        return index < len(shapes) and shapes[index][dimension : dimension + 1] == (self._size,)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed all random generators for the block, and restore them after it."""
    with same_randomness(torch.device("cpu")):
        seed_generators(seed)
        yield


def sized(data: Any) -> Sized:
    """Return ``data`` unchanged, after checking that it has a length and an index.

    Raises:
        WorkloadError: it lacks one of them, or it is a stream.
    """
    if isinstance(data, IterableDataset):  # it inherits an index, and may have a length
        raise WorkloadError(
            f"the workload's data is a stream ({type(data).__name__}), which no rank can take its shard of.\n"
            "Hand over a map-style data set. A stream may come from loader, beside it."
        )
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise WorkloadError("the workload's data has no len() or no index: hand over a map-style data set")
    return data  # type: ignore[no-any-return]

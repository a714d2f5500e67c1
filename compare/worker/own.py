"""Define the task of a workload of the user's own, with batches of any structure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sized
from functools import partial
from itertools import chain, count
from typing import Any, Self, TypeAlias

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, IterableDataset, Subset, default_collate

from backends.base import Batch, Facts
from compare.schema.config import RunConfig
from compare.worker.randomness import same_randomness
from compare.worker.task import ShardOrder, Task
from compare.worker.user_file import Factory, MakeWorkload
from compare.workload import WorkloadError

_MOST_TESTED = 1000
"""Number of training samples on which a workload without test data is tested."""
_CPU = torch.device("cpu")
BATCH_FORMS = (
    "tensors in tuples, lists, dictionaries, data classes, other objects with attributes, or packed sequences"
)
"""The structures that a batch may have, as a phrase for messages."""
_Leaf: TypeAlias = torch.Tensor | PackedSequence
"""A part of a batch that is moved to the device as one."""


class OwnTask(Task):
    """The task of a user's workload on one rank."""

    is_own = True
    test_needs_gradients: bool = False
    """Whether the loss computes gradients itself, as a gradient penalty does, so that a test enables them."""

    def __init__(self, config: RunConfig, make: MakeWorkload, device: torch.device) -> None:
        """Call the user's factory ``make`` with the run's seed, and check the data that it returns.

        Raises:
            WorkloadError: the data has no length or no index, or fewer samples than a global batch.
        """
        self._factory = Factory(make, config, device)
        super().__init__(config, device, self._factory.first)
        samples, needed = len(require_sized(self.workload.data)), config.global_batch_size
        if samples < needed:
            raise WorkloadError(
                f"the workload has {samples} training samples, but a step of all ranks takes {needed}. "
                "Choose a smaller --batch-size."
            )

    def attest(self) -> Facts:
        return {"function_called_once": self._factory.is_slow}

    def anew(self) -> Self:
        task = super().anew()
        task.workload = self._factory()
        return task

    def build_model(self) -> nn.Module:
        model = self.workload.model.to(self.device)
        if self.gate_dtype is not None:
            change = partial(in_dtype, dtype=self.gate_dtype)
            model._apply(change)  # noqa: SLF001 -- ``to`` makes complex numbers real
        torch.manual_seed(self.config.seed)
        return model

    def batches(self, shard: tuple[int, int]) -> SampleBatches | LoaderBatches:
        return LoaderBatches(self, shard) if self.workload.loader else SampleBatches(self, shard)

    def test_batches(self, shard: tuple[int, int]) -> Iterator[tuple[int, Batch]]:
        # Without test data, the first training samples are tested.
        workload, (index, count) = self.workload, shard
        samples = workload.data if workload.test_data is None else workload.test_data
        total = len(require_sized(samples))
        chosen = range(index, total if workload.test_data is not None else min(_MOST_TESTED, total), count)
        size = self.config.batch_size_per_rank
        loader = DataLoader(Subset(samples, chosen), size, collate_fn=workload.collate or default_collate)  # type: ignore[arg-type]
        for number, batch in enumerate(loader):
            yield min(size, len(chosen) - number * size), move(batch, self.device, self.gate_dtype)

    def test_batch(self, model: nn.Module, batch: Batch, samples: int) -> tuple[float, float]:
        workload = self.workload
        with torch.set_grad_enabled(self.test_needs_gradients):
            loss = _number(workload.loss(model, batch))
            metric = _number(workload.metric(model, batch)) if workload.metric else 0.0
        return samples * loss, samples * metric


def _number(figure: float | torch.Tensor) -> float:
    return float(figure.detach() if isinstance(figure, torch.Tensor) else figure)


# ---- the batches of a shard ----


class SampleBatches:
    """Endless batches of one shard, collated from the samples of the workload's data."""

    def __init__(self, task: Task, shard: tuple[int, int]) -> None:
        self._task = task
        self._data = task.workload.data
        self._collate = task.workload.collate or default_collate
        self._order = ShardOrder(shard, task.config, len(require_sized(self._data)))

    def attest(self) -> Facts:
        """Return the facts that ``ShardOrder.attest`` lists."""
        with same_randomness(_CPU):
            batch = self._collate([self._data[0]])
        return self._order.attest(tensors_of(batch))

    def __iter__(self) -> Iterator[Batch]:
        loader = DataLoader(
            self._data,  # type: ignore[arg-type]  # it needs only len() and an index
            batch_sampler=chain.from_iterable(self._order.indices_of(epoch).tolist() for epoch in count()),
            collate_fn=self._collate,
            generator=torch.Generator(),
        )  # type: ignore[arg-type]
        for batch in loader:
            yield move(batch, self._task.device, self._task.gate_dtype)


class LoaderBatches:
    """Endless batches of one shard, from the loader that the workload makes.

    Batches of another size than the loader was asked for, such as a smaller last one, are left out.
    """

    def __init__(self, task: Task, shard: tuple[int, int]) -> None:
        assert task.workload.loader  # noqa: S101 -- the task chose this class by it
        self._task = task
        self._order = ShardOrder(shard, task.config, len(require_sized(task.workload.data)))
        with same_randomness(_CPU, task.config.seed):
            self._loader = task.workload.loader(*shard, self._order.size)
        self._dimension: tuple[int, int] | None = None
        """The tensor and its dimension that count the samples, as in ``dimension_of_samples``."""

    def attest(self) -> Facts:
        """Return the facts of ``ShardOrder.attest``, and two facts about the loader.

        ``samples_of_an_epoch`` is None if the loader has no length. ``loader_workers`` is the number of its
        processes.
        """
        batch = self._begin_epoch(0)[0]
        try:
            samples = len(self._loader) * self._order.size  # type: ignore[arg-type]
        except TypeError:  # a stream has no length, and its DataLoader raises
            samples = None
        return self._order.attest(tensors_of(batch)) | {
            "samples_of_an_epoch": samples,
            "loader_workers": getattr(self._loader, "num_workers", 0),
        }

    def __iter__(self) -> Iterator[Batch]:
        for epoch in count():
            first, rest = self._begin_epoch(epoch)
            for batch in chain([first], rest):
                if self._is_whole(batch):
                    yield move(batch, self._task.device, self._task.gate_dtype)

    def _begin_epoch(self, epoch: int) -> tuple[Batch, Iterator[Batch]]:
        """Begin an epoch with its own seed, and return its first batch and an iterator over the others.

        Raises:
            WorkloadError: the first batch does not have the size that the loader was asked for.
        """
        sampler = getattr(self._loader, "sampler", None)
        if sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        with same_randomness(_CPU, self._task.config.seed * 1_000_003 + epoch):
            batches = iter(self._loader)
            first = next(batches, None)
        if first is None or not self._is_whole(first):
            raise WorkloadError(
                f"an epoch of the loader does not begin with a batch of {self._order.size} samples. Yield "
                "batches of the size that loader(rank, ranks, batch_size) gets, and begin each epoch anew."
            )
        return first, batches

    def _is_whole(self, batch: Batch) -> bool:
        """Return whether a batch has as many samples as the loader was asked for.

        A batch without any tensor that has a dimension counts as whole.
        """
        shapes = shapes_of(batch)
        self._dimension = self._dimension or dimension_of_samples(shapes, self._order.size)
        if not shapes or self._dimension is None:
            return not shapes
        index, dimension = self._dimension
        return index < len(shapes) and shapes[index][dimension : dimension + 1] == (self._order.size,)


def require_sized(data: Any) -> Sized:
    """Return a workload's data unchanged, after checking that it has ``len()`` and an index.

    Raises:
        WorkloadError: the data lacks one of them, or is a stream.
    """
    if isinstance(data, IterableDataset):  # it inherits an index, and may have a length
        raise WorkloadError(
            f"the workload's data is a stream ({type(data).__name__}), so ranks cannot take shards of it.\n"
            "Let data be a map-style data set, with len() and an index. Only what loader returns may be a "
            "stream."
        )
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise WorkloadError("the workload's data has no len() or no index. Use a data set that has both.")
    return data  # type: ignore[no-any-return]


# ---- batches of any structure ----


def tensors_of(batch: Batch) -> Iterator[torch.Tensor]:
    """Yield all tensors of a batch, including those of packed sequences."""
    for leaf in _leaves(batch):
        if isinstance(leaf, PackedSequence):
            yield from (tensor for tensor in leaf if tensor is not None)
        else:
            yield leaf


def in_dtype(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Return a tensor with its floating-point numbers in ``dtype``; whole numbers stay as they are.

    Complex numbers get that precision in both parts. None as ``dtype`` changes nothing.
    """
    if dtype is None or not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    return tensor.to(dtype.to_complex() if tensor.is_complex() else dtype)


def move(batch: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """Return a copy of a batch on a device, with its floating-point numbers in ``dtype``.

    Complex numbers get that precision in both parts. None as ``dtype`` keeps all dtypes.
    """

    def moved(leaf: _Leaf) -> Any:
        if isinstance(leaf, PackedSequence):  # its batch sizes stay on the CPU
            on_device = leaf.to(device=device)  # type: ignore[call-arg]  # torch hints at fewer forms
            return on_device._replace(data=moved(leaf.data))
        return in_dtype(leaf.to(device), dtype)

    return _changed(batch, moved, {})


def shapes_of(batch: Batch) -> list[tuple[int, ...]]:
    """Return the shapes of a batch's tensors in their order, except scalars.

    A packed sequence has the shape (number of sequences,).
    """
    shapes = (
        (int(leaf.batch_sizes[0]),) if isinstance(leaf, PackedSequence) else tuple(leaf.shape)
        for leaf in _leaves(batch)
    )
    return [shape for shape in shapes if shape]


def dimension_of_samples(shapes: list[tuple[int, ...]], size: int) -> tuple[int, int] | None:
    """Return which dimension of a batch counts its samples: a tensor's index, and the dimension's index.

    It is the first dimension of the first tensor that has ``size`` there. If none has, it is the second
    dimension, if all tensors have ``size`` there, as where time comes first. Otherwise it is None.
    """
    for index, shape in enumerate(shapes):
        if shape[0] == size:
            return index, 0
    second = bool(shapes) and all(shape[1:2] == (size,) for shape in shapes)
    return (0, 1) if second else None


def _leaves(batch: Batch) -> list[_Leaf]:
    """Return the tensors and packed sequences of a batch, in their order."""
    leaves: list[_Leaf] = []

    def collect(leaf: _Leaf) -> _Leaf:
        leaves.append(leaf)
        return leaf

    _changed(batch, collect, {})
    return leaves


def _changed(batch: Any, change: Callable[[_Leaf], Any], holders: Mapping[int, Any]) -> Any:
    """Return a copy of a batch, or of a part of it, in which ``change`` has replaced every leaf.

    ``holders`` maps the id of each object that holds this part to its copy: an object may hold itself.
    """
    if id(batch) in holders:
        return holders[id(batch)]
    if isinstance(batch, (torch.Tensor, PackedSequence)):
        return change(batch)
    if isinstance(batch, (tuple, list)):
        parts = [_changed(part, change, {**holders, id(batch): batch}) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if isinstance(batch, Mapping) and not isinstance(batch, MutableMapping):
        return type(batch)({name: _changed(part, change, holders) for name, part in batch.items()})  # type: ignore[call-arg]
    return _copied(batch, change, holders)


def _copied(batch: Any, change: Callable[[_Leaf], Any], holders: Mapping[int, Any]) -> Any:
    """Return a changed copy of a dictionary or of an object with attributes; any other value as it is."""
    attributes = [*getattr(batch, "__dataclass_fields__", ()), *getattr(batch, "__dict__", ())]
    is_mapping = isinstance(batch, MutableMapping)
    if not is_mapping and (not attributes or isinstance(batch, type) or callable(batch)):
        return batch
    copied = copy.copy(batch)  # a default dictionary keeps its factory
    inner = {**holders, id(batch): copied}
    for name in list(batch) if is_mapping else dict.fromkeys(attributes):
        if is_mapping:
            copied[name] = _changed(batch[name], change, inner)
        elif hasattr(batch, name):
            object.__setattr__(copied, name, _changed(getattr(batch, name), change, inner))
    return copied

"""Define the shards of a reference, each with its own model, batches and loss."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import TypeAlias

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from backends.base import Batch
from compare.schema.config import RunConfig
from compare.worker.own import tensors_of
from compare.worker.randomness import seed_generators
from compare.worker.task import Task

Gradients: TypeAlias = "list[torch.Tensor | None]"
"""The gradient of each parameter, in the model's order; None for a parameter that got none."""


class Shard:
    """The model, batches and loss of shard ``index`` of ``count``, with any state that they keep.

    The task makes them anew, as it does on a rank. So state in an attribute of the model, or in a closure of
    the user's, lasts from step to step as on a rank. Parameters and buffers are copied from ``start``, but
    trainable parameters share the memory of those of ``shared``, if that is given.
    """

    def __init__(
        self, task: Task, index: int, count: int, start: nn.Module, shared: nn.Module | None
    ) -> None:
        self.task = task.anew()
        self.model = self.task.build_model()
        self.loss = self.task.loss
        self.batches = iter(self.task.batches((index, count)))
        self.taken: list[Batch] = []
        """The batches of the latest step, one for each pass."""
        self.parts: list[Batch] = []
        """The parts of these batches, each with a loss of its own."""
        self.first_batch = ""
        """SHA-256 of the first batch; empty unless the user has a loader."""
        self.samples: set[str] = set()
        """SHA-256 of each sample so far; empty unless the user has a loader."""
        self._index = index
        copy_tensors(start.parameters(), self.model.parameters())
        copy_tensors(start.buffers(), self.model.buffers())
        if shared is not None:
            for own, other in zip(self.model.parameters(), shared.parameters(), strict=True):
                if own.requires_grad:
                    own.data = other.data

    def fetch(self, step: int, parts: Callable[[Batch], list[Batch]]) -> None:
        """Seed the generators for a step, and fetch its batches into ``taken`` and ``parts``."""
        # Random changes of samples draw from these generators, too.
        seed_step(self.task.config, step, self._index)
        self.taken = list(islice(self.batches, self.task.config.accumulate))
        self.parts = list(chain.from_iterable(map(parts, self.taken)))
        if self.task.workload.loader:
            self.first_batch = self.first_batch or hash_tensors(tensors_of(self.taken[0]))
            self.samples.update(sample for batch in self.taken for sample in hash_samples(batch))

    def gradients(self, scale: float = 1.0, *, dense: bool = True) -> Gradients:
        """Return the gradients of the mean loss of the latest batches, multiplied with ``scale``.

        If ``dense``, sparse gradients are converted to dense ones. The model keeps no gradients.
        """
        for batch in self.parts:
            loss = self.loss(self.model, batch) / len(self.parts)
            (loss if scale == 1 else loss * scale).backward()
        gradients: Gradients = []
        for parameter in self.model.parameters():
            gradient, parameter.grad = parameter.grad, None
            is_sparse = dense and gradient is not None and gradient.is_sparse
            gradients.append(gradient.to_dense() if is_sparse else gradient)  # type: ignore[union-attr]
        return gradients


def add_gradients(gradients: Gradients, total: Gradients) -> None:
    """Add a shard's gradients to the total of those before it; no gradient counts as zero."""
    for index, gradient in enumerate(gradients):
        earlier = total[index]
        total[index] = gradient if earlier is None else earlier if gradient is None else earlier + gradient


def clone_gradients(gradients: Iterable[torch.Tensor | None]) -> Gradients:
    """Return a copy of each gradient."""
    return [None if gradient is None else gradient.clone() for gradient in gradients]


def set_gradients(model: nn.Module, gradients: Gradients) -> None:
    """Give each parameter of a model its gradient."""
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient


@torch.no_grad()
def copy_tensors(sources: Iterable[torch.Tensor], targets: Iterable[torch.Tensor]) -> None:
    """Copy each source into the target at the same index; there must be as many targets."""
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)


def combine(batches: list[list[Batch]], size: int) -> Batch | None:
    """Return the batches of all shards as one batch, joined along the dimension of the samples.

    The result is None if the batches differ in form, or hold anything but tensors of ``size`` samples.
    """
    leaves, forms = zip(*(tree_flatten(batch) for taken in batches for batch in taken), strict=True)
    can_join = all(isinstance(leaf, torch.Tensor) and leaf.dim() for of_one in leaves for leaf in of_one)
    if not can_join or any(form != forms[0] for form in forms):
        return None
    columns = list(zip(*leaves, strict=True))
    if any(
        len(leaf) != size or leaf.shape[1:] != column[0].shape[1:] for column in columns for leaf in column
    ):
        return None
    return tree_unflatten([torch.cat(column) for column in columns], forms[0])


def scale_of(shard: int, scale: float) -> float:
    """Return the factor for the gradients of a shard, given by its index, in a step with a scale.

    The gradients of all shards are scaled down, but only those of the first one are scaled up. So a clip
    before the average acts on one rank, and not on the others.
    """
    return scale if scale < 1 or shard == 0 else 1.0


def seed_step(config: RunConfig, step: int, shard: int) -> None:
    """Seed all random generators for the step of one shard; both are given by their numbers, from 0."""
    seed_generators((config.seed * 1_000_003 + step) * 1_009 + shard)


class _LayerSeed:
    """A hook that seeds torch before each call of a layer, with the layer's index and the call's number."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._calls = 0

    def __call__(self, *_: object) -> None:
        self._calls += 1
        torch.manual_seed(self._calls * 1_009 + self._index)


def seed_layers(layers: nn.Module, first: int) -> None:
    """Seed torch before every call of a layer; ``first`` is the first layer's index in the whole model."""
    assert isinstance(layers, nn.Sequential)  # noqa: S101 -- no other model is divided
    for index, layer in enumerate(layers, first):
        layer.register_forward_pre_hook(_LayerSeed(index))


def hash_tensors(tensors: Iterable[torch.Tensor]) -> str:
    """Return the SHA-256 of the bytes of all tensors, in their order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        # As bytes, because NumPy has no bfloat16.
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(flat.numpy().data)
    return digest.hexdigest()


def hash_samples(batch: Batch) -> Iterator[str]:
    """Yield the SHA-256 of each sample of a batch; the first dimension of its first tensor counts them."""
    tensors = [tensor for tensor in tensors_of(batch) if tensor.dim()]
    for index in range(len(tensors[0]) if tensors else 0):
        yield hash_tensors(tensor[index] for tensor in tensors if len(tensor) == len(tensors[0]))

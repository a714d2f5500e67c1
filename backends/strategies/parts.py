"""Cut a batch into equal parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from backends.base import BackendError

if TYPE_CHECKING:
    from backends.base import Batch


def cut(batch: Batch, count: int) -> list[Batch]:
    """Return ``count`` equal parts of a batch, cut along its samples.

    Tensors with a row for each sample are cut, and the parts hold views of them. Anything else in the batch
    is in every part.

    Raises:
        BackendError: the number of samples is not divisible by ``count``.
    """
    if count == 1:
        return [batch]
    leaves, form = tree_flatten(batch)
    samples = next((len(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()), 0)
    if not samples or samples % count:
        raise BackendError(
            f"a batch of {samples} samples does not divide into {count} equal parts. Choose another "
            "--batch-size, or another number of microbatches or GPUs."
        )
    rows = [isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and len(leaf) == samples for leaf in leaves]
    pieces = [
        leaf.chunk(count) if has_rows else [leaf] * count for leaf, has_rows in zip(leaves, rows, strict=True)
    ]
    return [tree_unflatten(list(part), form) for part in zip(*pieces, strict=True)]

"""Broadcast, check and copy models, and cut batches into parts, for several strategies."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from backends.base import BackendError, Batch, Group


def state_to_broadcast(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of a model's state by name, not copied, so that they can be broadcast in place.

    A bool tensor is returned as a view of its bytes, because Horovod cannot broadcast bool.
    """
    return {
        name: value.view(torch.uint8) if value.dtype == torch.bool else value
        for name, value in model.state_dict().items()
        if isinstance(value, torch.Tensor)
    }


def start_from_first_rank(model: nn.Module, group: Group) -> None:
    """Overwrite a model's parameters and persistent buffers with rank 0's; every rank must call this."""
    with contiguous(state_to_broadcast(model).values()) as sent:
        for tensor in sent:
            group.broadcast_(tensor)


@contextmanager
def contiguous(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield contiguous copies of the tensors, and copy them back into the tensors at the end.

    Tensors that are contiguous or sparse are yielded themselves.
    """
    originals = list(tensors)
    sent = [t.contiguous() if t.layout == torch.strided else t for t in originals]
    yield sent
    for original, copied in zip(originals, sent, strict=True):
        if original is not copied:
            original.copy_(copied)


def require_summable(model: nn.Module, group: Group) -> None:
    """Require that the group's library can add up the gradients of every trainable parameter.

    Raises:
        BackendError: it cannot add up the dtype of a parameter, which the message names.
    """
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or str(parameter.dtype) not in group.unsupported_dtypes:
            continue
        if parameter.is_complex():
            raise BackendError(
                f"complex parameters: {name} is {parameter.dtype}, which {group.name} cannot add up. Store "
                "it as real numbers (torch.view_as_real), or leave this arm out."
            )
        raise BackendError(
            f"{group.name} cannot add up {parameter.dtype}, the dtype of {name}. Leave this arm out, or "
            "use float32 parameters."
        )


def require_one_dtype(model: nn.Module, arm: str) -> None:
    """Require that all parameters have the same dtype, because torch cannot shard several dtypes.

    Raises:
        BackendError: the parameters have several dtypes; the message begins with ``arm``, the arm's name.
    """
    dtypes = sorted({str(parameter.dtype) for parameter in model.parameters()})
    if len(dtypes) > 1:
        raise BackendError(
            f"{arm}: torch can shard parameters only if they have one dtype, but these have "
            f"{' and '.join(dtypes)}. Leave this arm out."
        )


def copy_with(model: nn.Module, replace: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """Return a copy of a model with ``replace(tensor)`` in place of each parameter and buffer.

    Tensors that several layers share stay shared.
    """
    memo: dict[int, torch.Tensor] = {id(buffer): replace(buffer) for buffer in model.buffers()}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(replace(parameter), parameter.requires_grad)
    return copy.deepcopy(model, memo)


def cut_batch(batch: Batch, count: int) -> list[Batch]:
    """Return ``count`` equal parts of a batch, cut along its samples.

    Tensors with a row for each sample are cut, and the parts hold views of them. All other objects of the
    batch are in every part.

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

"""Train without synchronisation: the control, and the reference beside other arms."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from backends.base import BackendError, Collectives, Replica

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from backends.base import Facts, Group, MakeOptimizer, Options


def start_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return what a model starts from, to be broadcast in place.

    Horovod carries no bool tensors, so these are bytes.
    """
    state = {name: held for name, held in model.state_dict().items() if hasattr(held, "dtype")}
    return {
        name: held.view(torch.uint8) if held.dtype == torch.bool else held for name, held in state.items()
    }


def start_from_first_rank(model: nn.Module, group: Group) -> None:
    """Give a model the parameters and buffers of rank 0. Collective."""
    with contiguous(start_of(model).values()) as sent:
        for tensor in sent:
            group.broadcast_(tensor)


@contextmanager
def contiguous(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield tensors that every library carries, and take over what they become.

    Those with other strides are copied.
    """
    held = list(tensors)
    sent = [t.contiguous() if t.layout == torch.strided else t for t in held]
    yield sent
    for own, other in zip(held, sent, strict=True):
        if own is not other:
            own.copy_(other)


def require_carried(model: nn.Module, group: Group) -> None:
    """Require that the group can add up gradients of every parameter.

    Raises:
        BackendError: names the first whose dtype the library refuses.
    """
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or str(parameter.dtype) not in group.refuses:
            continue
        if parameter.is_complex():
            raise BackendError(
                f"complex parameters: {name} is {parameter.dtype}, which {group.name} cannot add up. Hold it "
                "as real numbers (torch.view_as_real), or leave this arm out."
            )
        raise BackendError(
            f"{group.name} cannot add up {parameter.dtype}, the dtype of {name}. Leave this arm out, or "
            "use float32 parameters."
        )


def require_one_dtype(model: nn.Module, arm: str) -> None:
    """Require parameters of one dtype, where a library shards no others.

    Raises:
        BackendError: there are several.
    """
    found = sorted({str(parameter.dtype) for parameter in model.parameters()})
    if len(found) > 1:
        raise BackendError(
            f"{arm}: torch shards parameters of one dtype only, and these are {' and '.join(found)}. Leave "
            "this arm out."
        )


def copy_with(model: nn.Module, replace: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """Copy a model with other tensors; tied ones stay tied."""
    memo: dict[int, torch.Tensor] = {id(buffer): replace(buffer) for buffer in model.buffers()}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(replace(parameter), parameter.requires_grad)
    return copy.deepcopy(model, memo)


class LocalReplica(Replica):
    """A replica that trains alone on its shard; other strategies extend it."""

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        del options
        self.model = model
        self.shard = (group.rank, group.world_size)
        self.parameters = list(model.parameters())
        self.optimizer = make_optimizer(iter(self.parameters))

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def sync(self) -> None:
        pass

    def step(self) -> None:
        self.optimizer.step()
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """Drop all gradients, without the cost of ``zero_grad``.

        Its bookkeeping takes two percent of the MLP's step.
        """
        for parameter in self.parameters:
            parameter.grad = None

    def attest(self) -> Facts:
        return {"reduce_op": "none", "passes_per_step": self.passes_per_step}

    def collectives(self) -> Collectives | None:
        return Collectives((), lambda: None)

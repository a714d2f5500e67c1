"""Switch the synchronising of Horovod's ``DistributedOptimizer`` off and on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import msgspec
import torch

from compare.meter.ranks import DisagreementError, Ranks
from compare.schema.metered import Synchronised

_METHODS = ("_allreduce_grad_async", "_grouped_allreduce_grad_async", "synchronize")
"""The methods through which the optimizer sends gradients and waits for them."""


def is_horovod(optimizer: Any) -> bool:
    """Return whether an optimizer averages gradients by Horovod."""
    return all(hasattr(type(optimizer), name) for name in ("_allreduce_grad_async", "skip_synchronize"))


class HorovodRanks:
    """Ranks of Horovod, which exchange by its own collective."""

    def __init__(self) -> None:
        import horovod.torch as hvd

        self._hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()
        self.members: Sequence[int] = range(self.size)

    def exchange(self, value: Any) -> list[Any]:
        """Return what each rank gave at the same call; see ``Ranks``."""
        try:
            texts = self._hvd.allgather_object(msgspec.json.encode(value), name="ringside")
        except RuntimeError as error:  # Horovod's own error is one: a rank has left or failed
            raise DisagreementError.of(error) from None
        return [msgspec.json.decode(text) for text in texts]

    def leave(self, why: str) -> None:
        """Do nothing: Horovod itself reports a rank that does not come."""


class Horovod:
    """One optimizer of Horovod, with its number among them, and the models that it trains."""

    def __init__(self, optimizer: Any, models: Sequence[Any], number: int = 0) -> None:
        self._optimizer, self._number = optimizer, number
        self._models = list(models)
        self._on = True

    @property
    def models(self) -> list[Any]:
        """Return the modules that hold the optimizer's parameters."""
        return self._models

    @property
    def obstacle(self) -> str:
        """Return why this optimizer cannot be switched; empty if it can."""
        return (
            "Adasum averages parameters, not gradients"
            if hasattr(self._optimizer, "_starting_models")
            else ""
        )

    def join(self, meeting: int) -> Ranks:  # noqa: ARG002 -- its collectives keep sessions apart
        """Return the ranks of Horovod."""
        return HorovodRanks()

    def describe(self) -> Synchronised:
        """Return what is synchronised; Horovod does not tell which gradients it sends together."""
        optimizer, gradients = self._optimizer, self._parameters()
        return Synchronised(
            way="horovod",
            name="DistributedOptimizer",
            model=", ".join(type(model).__name__ for model in self._models),
            tensors=len(gradients),
            gradient_bytes=sum(parameter.nbytes for parameter in gradients),
            settings={
                "compression": getattr(optimizer._compression, "__name__", ""),  # noqa: SLF001 -- shown nowhere else
                "backward_passes_per_step": str(optimizer.backward_passes_per_step),
            },
        )

    def switch(self, *, on: bool) -> None:
        """Synchronise from the next step on, or do not."""
        optimizer = self._optimizer
        if on is self._on:
            return
        self._on = on
        if on:
            for name in _METHODS:
                vars(optimizer).pop(name, None)
        else:
            optimizer._allreduce_grad_async = lambda _: (None, None)  # noqa: SLF001 -- there is no switch
            optimizer._grouped_allreduce_grad_async = lambda _: (None, None)  # noqa: SLF001
            optimizer.synchronize = self._finish_locally

    def _finish_locally(self) -> None:
        """Do what the optimizer does after it has received all gradients."""
        optimizer = self._optimizer
        for parameter in optimizer._allreduce_delay:  # noqa: SLF001
            optimizer._allreduce_delay[parameter] = optimizer.backward_passes_per_step  # noqa: SLF001
        for group in optimizer._group_counts:  # noqa: SLF001
            optimizer._group_counts[group] = 0  # noqa: SLF001
        optimizer._handles.clear()  # noqa: SLF001
        optimizer._synchronized = True  # noqa: SLF001

    def measuring(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    @contextmanager
    def marking_waits(self, mark: Callable[[str], None]) -> Iterator[None]:
        """Mark the begin and the end of each wait for gradients."""
        optimizer = self._optimizer
        original = optimizer.synchronize

        def synchronize() -> None:
            mark("clipping")
            original()
            mark("waiting")

        optimizer.synchronize = synchronize
        try:
            yield
        finally:
            vars(optimizer).pop("synchronize", None)

    def start_messages(self) -> Callable[[], None]:
        """Start an all-reduce for each gradient, as the optimizer does."""
        import horovod.torch as hvd

        compress = self._optimizer._compression.compress  # noqa: SLF001 -- shown nowhere else
        zeros = [compress(torch.zeros_like(parameter))[0] for parameter in self._parameters()]
        name = f"ringside.{self._number}"
        handles = [hvd.allreduce_async_(zero, name=f"{name}.{n}") for n, zero in enumerate(zeros)]

        def wait() -> None:
            for handle in handles:
                hvd.synchronize(handle)

        return wait

    def _parameters(self) -> list[Any]:
        groups = [group["params"] for group in self._optimizer.param_groups]
        return [parameter for group in groups for parameter in group if parameter.requires_grad]

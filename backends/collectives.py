"""Define what describes collectives: those of a training step, and one with its buffers.

torch is imported for type checking only, so that the command line starts without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch


class Call(NamedTuple):
    """A collective that a step asked its library for."""

    collective: str
    """Name of the collective, as in ``Buffers``."""
    message_bytes: int
    """The size of the larger of a rank's two buffers."""
    ranks: tuple[int, ...] = ()
    """The ranks that take part; empty if all do."""


class Collectives(NamedTuple):
    """The collectives of one training step, which can be repeated without the training."""

    message_bytes: tuple[int, ...]
    """The size of each collective in bytes."""
    run: Callable[[], None]
    """A function that runs all collectives once, on buffers of its own; every rank must call it."""
    calls: tuple[Call, ...] = ()
    """The collectives one by one, if they were recorded; otherwise empty."""

    @classmethod
    def of(
        cls, buffers: Sequence[torch.Tensor], start: Callable[[torch.Tensor], Callable[[], object]]
    ) -> Collectives:
        """Return one collective for each buffer; ``run`` starts them all, and then waits for all.

        ``start`` starts the collective of a buffer, and returns the function that waits for its end.
        """

        def run() -> None:
            for wait in [start(buffer) for buffer in buffers]:
                wait()

        return cls(tuple(buffer.nbytes for buffer in buffers), run)


class Buffers(NamedTuple):
    """One collective and this rank's buffers for it, which are flat and contiguous."""

    collective: str
    """Name of the collective.

    It is ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``, ``reduce``, ``all_to_all``,
    ``send_recv`` or ``barrier``. The root of ``broadcast`` and ``reduce`` is rank 0. In ``send_recv`` each
    rank sends to the next rank and receives from the previous one.
    """
    source: torch.Tensor
    """The tensor that this rank contributes; ``reduce`` may overwrite it on every rank."""
    target: torch.Tensor
    """The tensor for the result, which is ``source`` for ``all_reduce``, ``broadcast`` and ``reduce``."""
    operation: str = "sum"
    """``sum``, ``prod``, ``min``, ``max`` or ``avg``; collectives that only move data ignore it."""

    def calling(self, collective: Callable[..., object], *arguments: object) -> Callable[[], torch.Tensor]:
        """Return a function that calls ``collective`` with ``arguments`` and returns ``target``."""

        def call() -> torch.Tensor:
            collective(*arguments)
            return self.target

        return call

"""The seam: what a backend must offer, and nothing more.

A backend is a **group** (who is here and how bytes move) joined with a **strategy** (how gradients
become the mean). The group is joined once per process; the strategy turns a plain model into a
``Replica`` that the training loop drives without knowing what stands behind it.

torch is imported for type checking only: the command line reads the registry without paying for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from torch import nn

    MakeOptimizer = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]

OptionValue: TypeAlias = "bool | int | float | str"
Options: TypeAlias = "Mapping[str, OptionValue]"
Facts: TypeAlias = "dict[str, Any]"
"""What was read back from a running library: JSON-ready, keys in the field's words."""


class BackendError(RuntimeError):
    """A backend cannot do what was asked of it here; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where this process stands among all, as its launcher told it."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    host: str


class Work(ABC):
    """A collective that has been started."""

    @abstractmethod
    def wait(self) -> None:
        """Return when the result stands in the tensor that was handed over."""


class Collectives(NamedTuple):
    """What averages the gradients of one step, apart from any training."""

    message_bytes: tuple[int, ...]
    """What is handed over, call by call."""
    run: Callable[[], None]
    """Run them once, on buffers of their own, the way the strategy runs them; every rank must."""


class Group(ABC):
    """The processes that train together, and the collectives between them."""

    name: ClassVar[str]

    def __init__(self, placement: Placement, device: torch.device) -> None:
        self.placement = placement
        self.device = device

    @property
    def rank(self) -> int:
        """Index of this process, 0 to ``world_size - 1``."""
        return self.placement.rank

    @property
    def world_size(self) -> int:
        """Number of processes in the group."""
        return self.placement.world_size

    @classmethod
    @abstractmethod
    def join(
        cls, placement: Placement, device: torch.device, options: Options, timeout_seconds: float
    ) -> Self:
        """Meet the other processes.

        Args:
            placement: where this process stands.
            device: where its tensors will live.
            options: the arm's options; a group reads those it knows.
            timeout_seconds: after which a collective that nobody answers is an error, where the
                library can tell.

        Raises:
            BackendError: the library has no way to do this on ``device``.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has called it."""

    @abstractmethod
    def all_reduce_(self, tensor: torch.Tensor) -> None:
        """Replace ``tensor`` (any shape, contiguous) by its sum over all ranks."""

    @abstractmethod
    def all_reduce_start_(self, tensor: torch.Tensor) -> Work:
        """Begin ``all_reduce_``; ``tensor`` must be left alone until the work is waited for."""

    @abstractmethod
    def broadcast_(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Replace ``tensor`` by the one that rank ``root`` holds."""

    @abstractmethod
    def attest(self) -> Facts:
        """Say what really runs, read back from the library: versions, transport, controller.

        Every rank calls it, at the same point: what a library does not tell may have to be observed.
        """

    @abstractmethod
    def leave(self) -> None:
        """Part from the others in good order; the process may end after it."""


class Replica(ABC):
    """One rank's trainable copy of the model. ``forward``, ``backward``, ``sync``, ``step``, in turn.

    With ``passes_per_step`` above 1 there are so many of the first two, in turn, before the others.

    The replica makes the optimizer: sharding strategies never train one that was made before them.
    """

    model: nn.Module
    """The plain module: its parameters are what is hashed and evaluated."""
    optimizer: torch.optim.Optimizer
    """The one that steps."""
    shard: tuple[int, int]
    """(index, count) of the data shard this replica trains on; not always (rank, world size)."""
    phases: tuple[str, ...] = ("forward", "backward", "sync", "step")
    """The phases that can be timed apart."""
    passes_per_step: int = 1
    """Forward and backward passes whose gradients add up before they are averaged, set by ``accumulate``."""

    @abstractmethod
    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        """Take over ``model``, start every rank from rank 0's parameters, and make the optimizer."""

    def accumulate(self, passes: int) -> None:
        """Take so many passes to a step, and communicate only in the last; to be called before the first.

        Gradients add up: it is for the caller to divide the losses by ``passes``.

        Raises:
            BackendError: the library cannot leave out communication in the others.
        """
        self.passes_per_step = passes

    @abstractmethod
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map one batch, shape (batch, features), to its logits, shape (batch, classes)."""

    @abstractmethod
    def backward(self, loss: torch.Tensor) -> None:
        """Compute gradients of a scalar loss; a strategy may begin to communicate here."""

    @abstractmethod
    def sync(self) -> None:
        """Return when every gradient is the mean over all shards."""

    @abstractmethod
    def step(self) -> None:
        """Apply the gradients and forget them."""

    @abstractmethod
    def attest(self) -> Facts:
        """Say how gradients become the mean: reduce op, buckets, fusion, as the library has them."""

    @abstractmethod
    def collectives(self) -> Collectives | None:
        """Return one step's collectives, to be timed alone; None where they cannot be run apart."""

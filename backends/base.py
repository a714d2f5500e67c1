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
    Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

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
    """One rank's trainable copy of the model.

    A step is ``learn`` once for each pass, then ``sync``, then ``step``. The replica makes the optimizer,
    because sharding strategies cannot train one that was made before them.
    """

    model: nn.Module
    """The module that trains, as the strategy holds it; ``whole`` returns the plain whole model."""
    optimizer: torch.optim.Optimizer
    """The optimizer that applies the update rule to what this rank updates; its settings are attested."""
    shard: tuple[int, int]
    """(index, count) of the data shard this replica trains on.

    Ranks that share a model, as in a pipeline, share a shard. Each batch is 1 / count of the global batch.
    """
    phases: tuple[str, ...] = ("forward", "backward", "sync", "step")
    """The phases that are timed separately. A strategy that fuses forward and backward leaves out forward."""
    passes_per_step: int = 1
    """Passes whose gradients add up before they are averaged; set by ``accumulate``."""
    cycle: int = 1
    """Steps after which communication repeats itself; timed blocks are whole multiples of it."""

    @abstractmethod
    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        """Take over ``model``, start every rank from rank 0's parameters, and make the optimizer."""

    def accumulate(self, passes: int) -> None:
        """Set the passes of a step; only the last one communicates. Call it before the first step.

        Gradients add up: ``learn`` divides the losses by ``passes``.

        Raises:
            BackendError: the library cannot leave out communication in the other passes.
        """
        self.passes_per_step = passes

    def learn(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        loss: Loss,
        on_phase: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Compute forward, loss and backward of one pass.

        A strategy that cannot separate forward from backward overrides it, and calls ``on_phase`` with
        ``backward`` alone.

        Args:
            inputs: shape (batch, features).
            targets: shape (batch,).
            loss: maps logits and targets to a scalar.
            on_phase: called with the name of every phase that has ended.
        """
        found = loss(self.forward(inputs), targets)
        on_phase("forward")
        # Gradients of the passes add up to those of the mean over all samples of the step.
        self.backward(found if self.passes_per_step == 1 else found / self.passes_per_step)
        on_phase("backward")

    @abstractmethod
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map one batch, shape (batch, features), to its logits, shape (batch, classes)."""

    @abstractmethod
    def backward(self, loss: torch.Tensor) -> None:
        """Compute gradients of a scalar loss; a strategy may start to communicate here."""

    @abstractmethod
    def sync(self) -> None:
        """Return when every gradient is the mean over all shards."""

    @abstractmethod
    def step(self) -> None:
        """Apply the gradients and drop them."""

    def whole(self) -> nn.Module:
        """Return the plain whole model as it is now. Collective: every rank calls it at the same point.

        Hashes, the reference and the test use it. It must not change the training.
        """
        return self.model

    def held_bytes(self) -> Facts:
        """Count the bytes that this rank holds of the parameters and of the optimizer's state."""
        state = (value for held in self.optimizer.state.values() for value in held.values())
        return {
            "parameter_bytes": sum(p.numel() * p.element_size() for p in self.model.parameters()),
            "optimizer_state_bytes": sum(
                value.numel() * value.element_size() for value in state if hasattr(value, "element_size")
            ),
        }

    @abstractmethod
    def attest(self) -> Facts:
        """Return how gradients become the mean: reduce op, buckets, fusion, as the library has them."""

    @abstractmethod
    def collectives(self) -> Collectives | None:
        """Return one step's collectives, to be timed alone; None where they cannot be run alone."""

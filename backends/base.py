"""Define the interface of a backend.

A backend has a **group** (the ranks, and how bytes move) and a **strategy** (how gradients become the mean).
A process joins the group once. The strategy turns a plain model into a ``Replica``. The training loop drives
the replica and does not know the backend.

torch is imported for type checking only, so that the command line starts without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch
    from torch import nn

MakeOptimizer: TypeAlias = "Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]"
Batch: TypeAlias = "Any"
"""Tensors of the samples of one pass, in tuples, lists or dictionaries."""
Loss: TypeAlias = "Callable[[Callable[..., Any], Batch], torch.Tensor]"
"""Map a model and a batch to the mean loss, a scalar."""
MakeStep: TypeAlias = "Callable[[nn.Module, MakeOptimizer], Callable[[Batch], object]]"
"""Make a user's own step of a model.

It makes its optimizer by the second argument.
"""
OptionValue: TypeAlias = "bool | int | float | str"
Options: TypeAlias = "Mapping[str, OptionValue]"
Facts: TypeAlias = "dict[str, Any]"
"""Facts from a running library, ready for JSON, in the field's terms."""


Trait: TypeAlias = Literal["sparse", "strided", "repeated", "unreached", "uncopied"]
"""What a model may ask of a strategy; see ``Replica.cannot``."""
SPARSE: Trait = "sparse"
"""Gradients without a place for every number."""
STRIDED: Trait = "strided"
"""Parameters that are not contiguous."""
REPEATED: Trait = "repeated"
"""Gradients that arrive several times in one backward."""
UNREACHED: Trait = "unreached"
"""Parameters under the model's output that get no gradient."""
UNCOPIED: Trait = "uncopied"
"""A model that ``copy.deepcopy`` refuses."""


class BackendError(RuntimeError):
    """A request that a backend cannot fulfil here, with a remedy."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The rank and host of this process, from its launcher."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    host: str


class Work(ABC):
    """A collective that has been started."""

    @abstractmethod
    def wait(self) -> None:
        """Return when the result is in the tensor."""


class Collectives(NamedTuple):
    """The collectives of one step, without training."""

    message_bytes: tuple[int, ...]
    """Bytes of each call."""
    run: Callable[[], None]
    """Run them once on every rank, with separate buffers."""


class Buffers(NamedTuple):
    """One collective with the buffers of this rank, flat and contiguous."""

    collective: str
    """Name of the collective.

    It is ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``, ``reduce``, ``all_to_all``,
    ``send_recv`` or ``barrier``. The fourth and the fifth have rank 0 as root. In ``send_recv`` each rank
    sends to the next, and receives from the one before.
    """
    source: torch.Tensor
    """What this rank gives; ``reduce`` may spoil it."""
    target: torch.Tensor
    """What this rank gets; the source itself for ``all_reduce``, ``broadcast`` and ``reduce``."""
    operation: str = "sum"
    """``sum``, ``prod``, ``min``, ``max`` or ``avg``; without meaning where data only moves."""

    def by(self, collective: Callable[..., object], *arguments: object) -> Callable[[], torch.Tensor]:
        """Return a call that fills the target by a library's function."""

        def call() -> torch.Tensor:
            collective(*arguments)
            return self.target

        return call


class Group(ABC):
    """The processes that train together, and the collectives between them."""

    name: ClassVar[str]
    refuses: ClassVar[frozenset[str]] = frozenset()
    """Dtypes that the library cannot add up."""

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
        """Connect to the other processes.

        Args:
            placement: the rank of this process.
            device: the device of its tensors.
            options: the arm's options; a group reads those that it knows.
            timeout_seconds: maximum time for a collective, if the library has such a limit.

        Raises:
            BackendError: the library cannot do this on ``device``.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has called it."""

    @abstractmethod
    def all_reduce_(self, tensor: torch.Tensor) -> None:
        """Replace ``tensor`` (any shape, contiguous) by its sum over all ranks."""

    @abstractmethod
    def all_reduce_start_(self, tensor: torch.Tensor) -> Work:
        """Start ``all_reduce_``; do not touch ``tensor`` before the work is done."""

    def prepare(self, buffers: Buffers) -> Callable[[], torch.Tensor]:
        """Return a call that carries out a collective on its buffers.

        The call is timed alone. It returns the result, which may take the place of the target. Every rank
        prepares at the same point. The first call may raise as well.

        Raises:
            BackendError: the library refuses it, on all ranks alike.
        """
        collectives = self._collectives(buffers)
        if buffers.collective not in collectives:
            raise BackendError(f"{self.name} has no {buffers.collective}")
        return collectives[buffers.collective]

    def _collectives(self, buffers: Buffers) -> Mapping[str, Callable[[], torch.Tensor]]:
        """Return a call for each collective that the library has."""
        del buffers
        return {}

    @abstractmethod
    def broadcast_(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Replace ``tensor`` by the one that rank ``root`` holds."""

    @abstractmethod
    def attest(self) -> Facts:
        """Return what really runs, read from the library: versions, transport, controller.

        Every rank calls it at the same point, because some facts have to be measured.
        """

    @abstractmethod
    def leave(self) -> None:
        """Leave the group in an orderly way; the process may exit then."""


class Replica(ABC):
    """One rank's trainable copy of the model.

    A step is ``learn`` once for each pass, then ``sync``, then ``step``. The replica makes the optimizer,
    because sharding strategies cannot train one that was made before them.
    """

    model: nn.Module
    """The module that trains; ``whole`` returns the plain whole model."""
    optimizer: torch.optim.Optimizer
    """The optimizer of this rank's part; its settings are attested."""
    shard: tuple[int, int]
    """(index, count) of the data shard this replica trains on.

    Ranks that share a model, as in a pipeline, share a shard. Each batch is 1 / count of the global batch.
    """
    phases: tuple[str, ...] = ("forward", "backward", "sync", "step")
    """The phases that are timed separately.

    A strategy that fuses forward and backward leaves out forward.
    """
    passes_per_step: int = 1
    """Passes whose gradients add up before the average; set by ``accumulate``."""
    cycle: int = 1
    """Steps in a cycle of communication; timed blocks are multiples of it."""
    needs_every_gradient: bool = False
    """Whether every parameter must take part in the loss on every rank."""
    broadcasts_buffers: bool = False
    """Whether each step starts from the buffers of the first shard."""
    takes_whole_step: bool = False
    """Whether ``learn`` is the user's own step, with clipping, schedule and optimizer."""
    averages_gradients: bool = True
    """Whether a step uses averaged gradients, not a rank's own."""
    parts_per_pass: int = 1
    """Parts of a pass with a loss each, as a pipeline's microbatches."""
    first_layer: int | None = None
    """Index of the first layer in ``model``; None if it has all."""

    @abstractmethod
    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        """Take the model, start from rank 0's parameters, and make the optimizer."""

    @classmethod
    def cannot(cls, options: Options) -> frozenset[Trait]:
        """Return what a model may not ask of this strategy."""
        del options
        return frozenset()

    def accumulate(self, passes: int) -> None:
        """Set the passes of a step before the first step.

        Only the last pass communicates. Gradients add up: ``learn`` divides the losses by ``passes``.

        Raises:
            BackendError: the library cannot leave out communication in the other passes.
        """
        self.passes_per_step = passes

    def compile(self, compile_calls: Callable[[nn.Module], None]) -> None:
        """Compile calls of the model, in place, before the first step.

        A strategy that calls parts of the model compiles those.
        """
        compile_calls(self.model)

    def learn(
        self,
        batch: Batch,
        loss: Loss,
        on_phase: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Compute forward, loss and backward of one pass.

        A strategy that cannot separate forward from backward overrides it, and calls ``on_phase`` with
        ``backward`` alone.

        Args:
            batch: the samples of this pass.
            loss: maps ``module`` and the batch to a scalar.
            on_phase: called with the name of every phase that has ended.
        """
        found = loss(self.module, batch)
        on_phase("forward")
        # Gradients of the passes add up to those of the mean over all samples of the step.
        self.backward(found if self.passes_per_step == 1 else found / self.passes_per_step)
        on_phase("backward")

    def parts(self, batch: Batch) -> list[Batch]:
        """Cut the batch of a pass into its parts.

        Each part has a mean loss of its own, and the pass has the mean of these.
        """
        return [batch]

    @property
    def module(self) -> Callable[..., Any]:
        """Return what the loss calls: the model, or the library's wrapper."""
        return self.model

    @abstractmethod
    def backward(self, loss: torch.Tensor) -> None:
        """Compute gradients of a scalar loss; communication may start here."""

    @abstractmethod
    def sync(self) -> None:
        """Return when every gradient is the mean over all shards."""

    @abstractmethod
    def step(self) -> None:
        """Apply the gradients and drop them."""

    def whole(self) -> nn.Module:
        """Return the plain whole model as it is now.

        This is collective: every rank calls it at the same point. Hashes, the reference and the test use it.
        It must not change the training.
        """
        return self.model

    def held_bytes(self) -> Facts:
        """Count this rank's bytes of parameters, gradients and optimizer state.

        Gradients are there within a step alone.
        """
        parameters = list(self.model.parameters())
        state = (value for held in self.optimizer.state.values() for value in held.values())
        return {
            "parameter_bytes": _bytes_of(parameters),
            "gradient_bytes": _bytes_of(p.grad for p in parameters if p.grad is not None),
            "optimizer_state_bytes": _bytes_of(value for value in state if getattr(value, "ndim", 0)),
        }

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers whose learning rates a schedule sets."""
        return [self.optimizer]

    @abstractmethod
    def attest(self) -> Facts:
        """Return how gradients become the mean: reduce op, buckets, fusion."""

    @abstractmethod
    def collectives(self) -> Collectives | None:
        """Return one step's collectives; None if they cannot run alone."""


def _bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Count the bytes of tensors; a ``DTensor`` has a local part."""
    local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in local)

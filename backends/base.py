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
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch
    from torch import nn

    from backends.collectives import Buffers, Collectives

MakeOptimizer: TypeAlias = "Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]"
Batch: TypeAlias = "Any"
"""The samples of one pass: a tensor, or tensors in tuples, lists or dictionaries."""
Loss: TypeAlias = "Callable[[Callable[..., Any], Batch], torch.Tensor]"
"""A function of a model and a batch that returns the mean loss over the samples, a scalar tensor."""
MakeStep: TypeAlias = "Callable[[nn.Module, MakeOptimizer], Callable[[Batch], object]]"
"""A function of a model and a ``MakeOptimizer`` that returns the user's own step, a function of a batch.

It must make its optimizer with that second argument.
"""
OptionValue: TypeAlias = "bool | int | float | str"
Options: TypeAlias = "Mapping[str, OptionValue]"
Facts: TypeAlias = "dict[str, Any]"
"""Facts that a running library reports, by their names; all values can be written as JSON."""
Wait: TypeAlias = Callable[[], object]
"""A function that waits for a collective; on a GPU it may return earlier, and let the device wait."""

Trait: TypeAlias = Literal["sparse", "strided", "repeated", "unreached", "uncopied"]
"""A property of a model that some strategies do not support; see ``Replica.unsupported``."""
SPARSE: Trait = "sparse"
"""Some gradients are sparse tensors."""
STRIDED: Trait = "strided"
"""Some parameters are not contiguous."""
REPEATED: Trait = "repeated"
"""Some gradients arrive several times in one backward pass."""
UNREACHED: Trait = "unreached"
"""Some parameters contribute to the model's output, but get no gradient from the loss."""
UNCOPIED: Trait = "uncopied"
"""``copy.deepcopy`` fails for the model."""


class BackendError(RuntimeError):
    """An error for what a backend, or a rank that uses it, cannot do; most messages name a remedy."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The rank that the launcher gave this process, the numbers of ranks, and the host's name."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    host: str


class Group(ABC):
    """The processes that train together, and the collectives between them."""

    name: ClassVar[str]
    unsupported_dtypes: ClassVar[frozenset[str]] = frozenset()
    """Names of the dtypes that the library cannot add up, such as ``torch.bfloat16``."""

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
        """Connect to the other processes, and return the group.

        Args:
            placement: the rank and host of this process.
            device: the device of the tensors that the group will reduce and send.
            options: the arm's options; a group reads those that it knows.
            timeout_seconds: maximum time for a collective, if the library has such a limit.

        Raises:
            BackendError: the library does not support ``device`` or an option, or contradicts ``placement``.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Wait until every rank has called this method."""

    def all_reduce_(self, tensor: torch.Tensor) -> None:
        """Replace ``tensor`` (any shape, contiguous) by its sum over all ranks."""
        self.all_reduce_start_(tensor)()

    @abstractmethod
    def all_reduce_start_(self, tensor: torch.Tensor) -> Wait:
        """Start ``all_reduce_``, and return a function that waits for the result.

        Do not touch ``tensor`` before that function has returned.
        """

    def prepare(self, buffers: Buffers) -> Callable[[], torch.Tensor]:
        """Return a function that carries out the collective on ``buffers`` and returns the result.

        The result may be a new tensor instead of ``buffers.target``. Every rank must call ``prepare`` at the
        same point, because some groups communicate in it. Some libraries refuse a collective only at the
        function's first call, with an error of their own.

        Raises:
            BackendError: the library lacks the collective or the operation; all ranks raise this together.
        """
        collectives = self._collectives(buffers)
        if buffers.collective not in collectives:
            raise BackendError(f"{self.name} has no {buffers.collective}")
        return collectives[buffers.collective]

    def record(self, step: Callable[[], object]) -> Collectives | None:
        """Call ``step``, and return the collectives that it asked the library for, to be repeated without it.

        Every rank must call this at the same point. The result is None if the library does not show them, or
        if the step called none.
        """
        step()
        return None

    def _collectives(self, buffers: Buffers) -> Mapping[str, Callable[[], torch.Tensor]]:
        """Return a function for each collective that the library has, by the collective's name."""
        del buffers
        return {}

    @abstractmethod
    def broadcast_(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Overwrite ``tensor`` with the values that rank ``root`` holds."""

    @abstractmethod
    def attest(self) -> Facts:
        """Return facts of what really runs, as the library and the kernel report it.

        Every group has the facts ``library``, ``transport`` and ``versions``. All ranks must call this at the
        same point, because some groups measure facts by a collective.
        """

    @abstractmethod
    def leave(self) -> None:
        """Leave the group, so that this process can exit without an error."""


class Replica:
    """The model on one rank, with its optimizer and the synchronisation of its gradients.

    A step is ``learn`` once for each pass, then ``sync``, then ``step``. The replica makes the optimizer
    itself, because a sharding strategy replaces the parameters that an earlier optimizer would hold.

    This class trains on its rank's shard without synchronisation, as the control does. A strategy derives
    from it, starts from rank 0's parameters, and overrides what it does to gradients.
    """

    model: nn.Module
    """The module that this rank trains; it may hold only shards of parameters, or only some layers."""
    parameters: list[nn.Parameter]
    """The parameters of ``model``, in their order."""
    optimizer: torch.optim.Optimizer
    """The optimizer of the parameters that this rank updates; its settings are attested."""
    shard: tuple[int, int]
    """The pair (index, count): the data shard that this replica trains on, and the number of shards.

    Ranks that hold parts of one model, as in a pipeline, train on the same shard. A shard's batch is
    1 / count of the global batch.
    """
    phases: tuple[str, ...] = ("forward", "backward", "sync", "step")
    """The phases of a step in which this strategy works.

    A strategy that cannot separate the forward from the backward pass leaves out ``forward``. One that
    communicates in another phase leaves out ``sync``.
    """
    passes_per_step: int = 1
    """Number of passes whose gradients add up before they are averaged; ``accumulate`` sets this."""
    cycle: int = 1
    """Number of steps after which the communication repeats; timed blocks are multiples of this."""
    needs_every_gradient: bool = False
    """Whether every trainable parameter must get a gradient on every rank."""
    broadcasts_buffers: bool = False
    """Whether every rank starts each step from the buffers of rank 0, such as running means."""
    takes_whole_step: bool = False
    """Whether ``learn`` runs the user's own complete step, with clipping, schedule and optimizer."""
    averages_gradients: bool = True
    """Whether steps use averaged gradients; False if ranks average their parameters instead."""
    parts_per_pass: int = 1
    """Number of parts of a pass, such as a pipeline's microbatches or the shares of several GPUs."""
    first_layer: int | None = None
    """Index in the whole model of the first layer in ``model``; None if ``model`` has all layers."""
    unsupported: frozenset[Trait] = frozenset()
    """Traits of models that this strategy cannot train with any options."""

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        """Keep the model and train it in place, with an optimizer that ``make_optimizer`` makes."""
        del options
        self.model = model
        self.group = group
        self.shard = (group.rank, group.world_size)
        self.parameters = list(model.parameters())
        self.optimizer = make_optimizer(iter(self.parameters))

    @classmethod
    def unsupported_with(cls, options: Options) -> frozenset[Trait]:
        """Return the traits of models that this strategy cannot train with these options."""
        del options
        return cls.unsupported

    def accumulate(self, passes: int) -> None:
        """Set the number of passes in a step; to be called before the first step.

        Only the last pass of a step averages gradients. The passes' gradients add up to their mean, because
        ``learn`` divides each loss by ``passes``.

        Raises:
            BackendError: the strategy does not support several passes.
        """
        self.passes_per_step = passes

    def compile(self, compile_calls: Callable[[nn.Module], None]) -> None:
        """Apply ``compile_calls`` to the model, in place; to be called before the first step.

        A strategy that calls parts of the model one by one applies it to each of them instead.
        """
        compile_calls(self.model)

    def learn(
        self,
        batch: Batch,
        loss: Loss,
        on_phase: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Run the forward pass, the loss and the backward pass on one batch.

        A strategy that cannot separate forward from backward overrides this method, and calls ``on_phase``
        only with ``backward``.

        Args:
            batch: the samples of this pass.
            loss: a function that gets ``module`` and the batch, and returns a scalar.
            on_phase: called with the name of each phase when it has ended.
        """
        mean_loss = loss(self.module, batch)
        on_phase("forward")
        # Gradients of the passes add up to those of the mean over all samples of the step.
        self.backward(mean_loss if self.passes_per_step == 1 else mean_loss / self.passes_per_step)
        on_phase("backward")

    def parts(self, batch: Batch) -> list[Batch]:
        """Return the parts of a pass's batch that this strategy passes through the model separately.

        The loss of the pass is the mean of the losses of its parts.
        """
        return [batch]

    @property
    def module(self) -> Callable[..., Any]:
        """The model that the loss calls: ``model``, or the library's wrapper of it."""
        return self.model

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of a scalar loss; some strategies average gradients during this call."""
        loss.backward()

    def sync(self) -> None:
        """Wait until every gradient is the mean over all shards; without averaging, do nothing."""

    def step(self) -> None:
        """Let the optimizer apply the gradients, and then set all gradients to None."""
        self.optimizer.step()
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """Set all gradients to None.

        ``zero_grad`` would do more, such as opening a range for a profiler, and that shows in short steps.
        """
        for parameter in self.parameters:
            parameter.grad = None

    def whole(self) -> nn.Module:
        """Return the plain model with the current values of all parameters.

        The result may be the live model or a copy of it. Every rank must call this at the same point, because
        some strategies gather parameters. Hashes, the proof against the reference and the evaluation on test
        data use it, so the call must not change the training.
        """
        return self.model

    def held_bytes(self) -> Facts:
        """Return how many bytes of parameters, gradients and optimizer state this rank holds now.

        Between steps there are no gradients. An optimizer's single numbers, such as step counts, are left
        out.
        """
        parameters = list(self.model.parameters())
        state = (value for values in self.optimizer.state.values() for value in values.values())
        return {
            "parameter_bytes": _bytes_of(parameters),
            "gradient_bytes": _bytes_of(p.grad for p in parameters if p.grad is not None),
            "optimizer_state_bytes": _bytes_of(value for value in state if getattr(value, "ndim", 0)),
        }

    def library_bytes(self) -> int | None:
        """Return the bytes that the library keeps beside the gradients, such as buckets; None if unknown."""
        return 0

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers whose settings a learning-rate schedule changes."""
        return [self.optimizer]

    def attest(self) -> Facts:
        """Return facts of how the strategy averages, such as ``reduce_op``; every rank must call this."""
        return {"reduce_op": "none", "passes_per_step": self.passes_per_step}

    def collectives(self) -> Collectives | None:
        """Return the collectives of one step, to be timed without training, or None.

        The result is None if a step has none, or if they cannot be repeated, as where neighbours exchange
        activations. It is also None in an arm that shards, because a step is recorded there instead.
        """
        return None


def _bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return the sum of the tensors' bytes; of a ``DTensor`` only the local part counts."""
    local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in local)

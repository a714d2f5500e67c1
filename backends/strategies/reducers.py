"""Sum gradients by hand: a class for each mode of averaging, and the buckets that several modes use.

A mode sends each gradient alone, all at once, or buckets during the backward pass. It may also sum in memory
of one host, or by the simpler collectives from which an all-reduce can be built. Each of these forms ends
with the same sum on all ranks, but they differ in how often and how much a rank sends. With N ranks and
gradients of S bytes:

- ``ring``: 2 (N - 1) messages of S / N bytes, all to the right neighbour
- ``reduce_broadcast``: a reduce of S bytes to rank 0, which then broadcasts the sum
- ``reduce_scatter``: S (N - 1) / N bytes twice; each rank sums one part, and then all gather the parts
- ``all_gather``: S bytes to every other rank; each rank sums all gradients itself
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from backends.base import BackendError, Facts, Group, Options, Wait
from backends.collectives import Collectives
from backends.groups.torch_group import pass_on
from backends.shared_memory.sum import SharedSum
from backends.strategies.models import contiguous


class Reducer(ABC):
    """The base class of all modes, which replace every gradient by its sum over all ranks."""

    def __init__(self, parameters: list[nn.Parameter], group: Group, options: Options) -> None:
        del options
        self.parameters = parameters
        self.group = group
        self.buckets: list[Bucket] = []

    @abstractmethod
    def reduce(self) -> None:
        """Replace the parameters' gradients by their sums over all ranks.

        Raises:
            BackendError: a parameter received no gradient.
        """

    def all_reduce_(self, message: torch.Tensor) -> None:
        """Replace the values of ``message`` by their sums over all ranks."""
        self.group.all_reduce_(message)

    def messages(self) -> list[torch.Tensor]:
        """Return a tensor of the right size and dtype for each all-reduce of a step, in order."""
        return [bucket.padded for bucket in self.buckets]

    def message_bytes(self) -> list[int]:
        """Return the number of bytes of gradients in each all-reduce of a step, in order."""
        return [bucket.flat.nbytes for bucket in self.buckets]

    def kept_bytes(self) -> int:
        """Return the bytes of memory that this mode keeps, without buckets that are the gradients now."""
        gradients = {_address(p.grad) for p in self.parameters if p.grad is not None}
        return sum(b.padded.nbytes for b in self.buckets if _address(b.padded) not in gradients)

    def make_replay(self) -> Callable[[], None]:
        """Return a function that runs the all-reduces of one step on buffers of its own."""
        buffers = [torch.zeros_like(message) for message in self.messages()]

        def run() -> None:
            for buffer in buffers:
                self.all_reduce_(buffer)

        return run

    def attest(self) -> Facts:
        """Return what this mode really used, such as ``{"form": "ring"}``; the replica adds it to its report.

        A ``transport`` among these facts replaces the one that the group reports.
        """
        return {}


class Bucket:
    """A buffer that holds the gradients of some parameters end to end, or in local SGD their values.

    Collecting the gradients costs one pass over memory. Nothing is copied back, because the parameters use
    views of the buffer as their gradients until the end of the step. ``padded`` is the whole buffer, whose
    length is divisible by ``multiple``, and ``flat`` is the part of it that is used.
    """

    def __init__(self, parameters: list[nn.Parameter], *, multiple: int = 1) -> None:
        self.parameters = parameters
        self.arrived, self.expected = 0, 0
        lengths = [p.numel() for p in parameters]
        self.padded = parameters[0].detach().new_zeros(-(-sum(lengths) // multiple) * multiple)
        self.flat = self.padded[: sum(lengths)]
        pieces = self.flat.split(lengths)
        self.views = [piece.view_as(p) for piece, p in zip(pieces, parameters, strict=True)]

    def collect(self) -> None:
        """Copy the gradients into the buffer, and make its views the parameters' gradients."""
        torch._foreach_copy_(self.views, gradients_of(self.parameters))
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view


def gradients_of(parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    """Return the gradients of the parameters in their order, not copied.

    Raises:
        BackendError: a parameter received no gradient.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if len(gradients) < len(parameters):
        shape = next(tuple(p.shape) for p in parameters if p.grad is None)
        raise BackendError(
            f"A parameter of shape {shape} received no gradient, so it cannot be averaged. "
            "Let every parameter take part in the loss."
        )
    return gradients


def _address(tensor: torch.Tensor) -> int:
    """Return the address of the memory in which a tensor lies; a sparse one lies in none of a bucket."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


def by_dtype(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Return a list of the parameters of each dtype, in the order in which they first occur."""
    groups: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.dtype, []).append(parameter)
    return list(groups.values())


class PerParameterReducer(Reducer):
    """A mode with one blocking all-reduce for each parameter, as tutorials write it.

    Tutorials divide the gradients after the sum, but here the backward pass divides them. The latency of many
    calls makes this mode slow.
    """

    def reduce(self) -> None:
        for gradient in gradients_of(self.parameters):
            with contiguous([gradient]) as (sent,):
                self.all_reduce_(sent)

    def messages(self) -> list[torch.Tensor]:
        return [
            p if p.is_contiguous() else torch.empty_like(p, memory_format=torch.contiguous_format)
            for p in self.parameters
        ]

    def message_bytes(self) -> list[int]:
        return [p.nbytes for p in self.parameters]


class FlatReducer(Reducer):
    """A mode with one blocking all-reduce for each dtype, whose gradients are copied into one buffer."""

    def __init__(
        self, parameters: list[nn.Parameter], group: Group, options: Options, *, multiple: int = 1
    ) -> None:
        super().__init__(parameters, group, options)
        self.buckets = [Bucket(same_dtype, multiple=multiple) for same_dtype in by_dtype(parameters)]

    def reduce(self) -> None:
        for bucket in self.buckets:
            bucket.collect()
            self.all_reduce_(bucket.padded)


_CHANGED_STEP = (
    "This step runs other parts of the model than the first did. Choose mode=flat, which waits for the end "
    "of backward."
)


class OverlapReducer(Reducer):
    """A mode with one all-reduce for each bucket, which starts when the backward pass has filled the bucket.

    Buckets are in the reverse order of the parameters, because the last layer's gradients arrive first. A
    gradient arrives several times in a step of several passes, and under re-entrant checkpoints. So the first
    step counts the arrivals of each bucket, and starts all its collectives after the backward pass.
    """

    def __init__(self, parameters: list[nn.Parameter], group: Group, options: Options) -> None:
        super().__init__(parameters, group, options)
        capacity = int(float(options["bucket_mb"]) * 2**20)
        self.buckets = [Bucket(members) for members in _fill_buckets(parameters[::-1], capacity)]
        self.started: list[Wait] = []
        self._is_first_step = True
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(lambda _, bucket=bucket: self._arrived(bucket))

    def reduce(self) -> None:
        late = self.buckets[len(self.started) :]
        for bucket in late:
            self._start(bucket)
        for wait in self.started:
            wait()
        self.started.clear()
        if late and not self._is_first_step:
            raise BackendError(f"fewer gradients arrived than in the first step. {_CHANGED_STEP}")
        for bucket in self.buckets:
            bucket.expected, bucket.arrived = bucket.arrived, 0
        self._is_first_step = False

    def make_replay(self) -> Callable[[], None]:
        buffers = [torch.zeros_like(message) for message in self.messages()]
        return Collectives.of(buffers, self.group.all_reduce_start_).run

    def _arrived(self, bucket: Bucket) -> None:
        bucket.arrived += 1
        if self._is_first_step:
            return
        if bucket.arrived > bucket.expected:
            raise BackendError(f"more gradients arrived than in the first step. {_CHANGED_STEP}")
        # Every rank must start the collectives in the same order, so a bucket that fills early waits.
        while len(self.started) < len(self.buckets):
            following = self.buckets[len(self.started)]
            if following.arrived < following.expected:
                return
            self._start(following)

    def _start(self, bucket: Bucket) -> None:
        bucket.collect()
        self.started.append(self.group.all_reduce_start_(bucket.flat))


class SharedMemoryReducer(Reducer):
    """A mode that sums all gradients in memory that all ranks map; only its set-up uses the group."""

    def __init__(self, parameters: list[nn.Parameter], group: Group, options: Options) -> None:
        super().__init__(parameters, group, options)
        self.shared = SharedSum(parameters, group)

    def reduce(self) -> None:
        self.shared.reduce(gradients_of(self.parameters))
        for parameter, view in zip(self.parameters, self.shared.views, strict=True):
            parameter.grad = view

    def message_bytes(self) -> list[int]:
        return [self.shared.nbytes]

    def kept_bytes(self) -> int:
        return self.shared.reserved_bytes

    def make_replay(self) -> Callable[[], None]:
        gradients = [torch.zeros_like(p) for p in self.parameters]
        return partial(self.shared.reduce, gradients)

    def attest(self) -> Facts:
        return self.shared.attest()


def _fill_buckets(parameters: list[nn.Parameter], cap_bytes: int) -> list[list[nn.Parameter]]:
    """Return the parameters in order, divided into buckets of one dtype and at most ``cap_bytes``.

    A parameter that is larger than this has a bucket of its own.
    """
    filled: list[list[nn.Parameter]] = []
    size = 0
    for parameter in parameters:
        nbytes = parameter.numel() * parameter.element_size()
        if not filled or size + nbytes > cap_bytes or parameter.dtype != filled[-1][0].dtype:
            filled.append([])
            size = 0
        filled[-1].append(parameter)
        size += nbytes
    return filled


def ring(tensor: torch.Tensor, rank: int, world: int) -> None:
    """Sum a flat tensor over ``world`` ranks in place, by messages from each rank to the next one.

    First each part travels around the ring, and every rank adds its own values to it. Then the sums travel
    around the ring.
    """
    parts = tensor.tensor_split(world)
    incoming = torch.empty_like(parts[0])  # no part is larger
    for step in range(world - 1):
        own = parts[(rank - step - 1) % world]
        received = incoming[: own.numel()]
        pass_on(parts[(rank - step) % world], received, rank, world)
        own += received
    for step in range(world - 1):
        pass_on(parts[(rank + 1 - step) % world], parts[(rank - step) % world], rank, world)


def reduce_broadcast(tensor: torch.Tensor, rank: int, world: int) -> None:
    """Sum a tensor over all ranks in place: it is reduced to rank 0, which broadcasts the sum."""
    del rank, world
    dist.reduce(tensor, dst=0)
    dist.broadcast(tensor, src=0)


def reduce_scatter(tensor: torch.Tensor, rank: int, world: int) -> None:
    """Sum a flat tensor over all ranks in place: each rank sums one of ``world`` equal parts.

    The ranks then gather the sums of all parts. ``world`` must divide the length of the tensor.
    """
    del rank
    own = torch.empty_like(tensor[: tensor.numel() // world])
    dist.reduce_scatter_tensor(own, tensor)
    dist.all_gather_into_tensor(tensor, own)


def all_gather(tensor: torch.Tensor, rank: int, world: int) -> None:
    """Sum a flat tensor over all ranks in place: each rank gathers all tensors, and adds them up."""
    del rank
    gathered = tensor.new_empty(world * tensor.numel())
    dist.all_gather_into_tensor(gathered, tensor)
    torch.sum(gathered.view(world, -1), 0, out=tensor)


FORMS: dict[str, Callable[[torch.Tensor, int, int], None]] = {
    form.__name__: form for form in (ring, reduce_broadcast, reduce_scatter, all_gather)
}
"""The functions that build an all-reduce from other collectives, by the choices of the option ``mode``."""


class PrimitiveReducer(FlatReducer):
    """A mode with one sum for each dtype, by the function in ``FORMS`` that the option ``mode`` names."""

    def __init__(self, parameters: list[nn.Parameter], group: Group, options: Options) -> None:
        super().__init__(parameters, group, options, multiple=group.world_size)
        self.form = FORMS[str(options["mode"])]

    def all_reduce_(self, message: torch.Tensor) -> None:
        if self.group.world_size > 1:
            self.form(message, self.group.rank, self.group.world_size)

    def attest(self) -> Facts:
        return {"form": self.form.__name__}


REDUCERS: dict[str, type[Reducer]] = {
    "per_parameter": PerParameterReducer,
    "flat": FlatReducer,
    "overlap": OverlapReducer,
    "shared_memory": SharedMemoryReducer,
    **dict.fromkeys(FORMS, PrimitiveReducer),
}
"""The reducers by the choices of the option ``mode``."""

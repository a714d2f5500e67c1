"""Sum gradients by hand: the modes of averaging, with the interface ``Reducer`` and buckets that they share.

A mode sends each gradient alone, all at once, or buckets during the backward pass. It may sum in memory of
one host, or by the simpler collectives from which an all-reduce can be built. Every such form ends with the
same sum on all ranks, but they differ in how often and how much a rank sends. With N ranks and gradients of
S bytes:

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

from backends.base import BackendError, Collectives, Facts, Group, Options, Wait
from backends.groups.torch_group import pass_on
from backends.shared_memory.sum import SharedSum
from backends.strategies.models import contiguous


class Reducer(ABC):
    """The interface of a mode: replace every gradient by its sum over all ranks."""

    def __init__(self, parameters: list[nn.Parameter], group: Group, options: Options) -> None:
        del options
        self.parameters = parameters
        self.group = group
        self.buckets: list[Bucket] = []

    @abstractmethod
    def reduce(self) -> None:
        """Replace this step's gradients by their sums over all ranks.

        Raises:
            BackendError: a parameter received no gradient.
        """

    def all_reduce_(self, message: torch.Tensor) -> None:
        """Replace a tensor by its sum over all ranks."""
        self.group.all_reduce_(message)

    def messages(self) -> list[torch.Tensor]:
        """Return one tensor for each all-reduce of a step; only its shape and dtype matter."""
        return [bucket.padded for bucket in self.buckets]

    def message_bytes(self) -> list[int]:
        """Return the bytes of gradients in each all-reduce of one step."""
        return [bucket.flat.nbytes for bucket in self.buckets]

    def make_replay(self) -> Callable[[], None]:
        """Return a function that runs one step's all-reduces on separate buffers."""
        buffers = [torch.zeros_like(message) for message in self.messages()]

        def run() -> None:
            for buffer in buffers:
                self.all_reduce_(buffer)

        return run

    def attest(self) -> Facts:
        """Return the facts of this mode that the replica adds to its own.

        A ``transport`` among them replaces the group's.
        """
        return {}


class Bucket:
    """A persistent buffer that holds the gradients of some parameters end to end.

    Collecting them costs one pass over memory. Nothing is copied back, because the parameters use the
    buffer's views as their gradients until the step drops them. ``padded`` is the whole buffer, whose length
    is divisible by ``multiple``; ``flat`` is its part with gradients.
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
    """Return the gradients of all parameters, not copied, in the order of the parameters.

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


def by_dtype(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Return one list of parameters per dtype; lists and parameters keep their order."""
    groups: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.dtype, []).append(parameter)
    return list(groups.values())


class PerParameterReducer(Reducer):
    """One blocking all-reduce per parameter, as tutorials write it.

    Tutorials divide the gradients after the sum, but this strategy divides in the backward pass. The latency
    of many calls makes this mode slow.
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
    """One blocking all-reduce of all gradients of a dtype, which are copied into a persistent buffer."""

    def __init__(
        self, parameters: list[nn.Parameter], group: Group, options: Options, *, multiple: int = 1
    ) -> None:
        super().__init__(parameters, group, options)
        self.buckets = [Bucket(its, multiple=multiple) for its in by_dtype(parameters)]

    def reduce(self) -> None:
        for bucket in self.buckets:
            bucket.collect()
            self.all_reduce_(bucket.padded)


_OTHER_PARTS = (
    "This step runs other parts of the model than the first did. Choose mode=flat, which waits for the end "
    "of backward."
)


class OverlapReducer(Reducer):
    """One all-reduce per bucket of gradients, which starts when the backward pass has filled the bucket.

    Buckets are in the reverse order of the parameters, because the last layer's gradients arrive first. A
    gradient arrives several times in a step of several passes, and under re-entrant checkpoints. So the first
    step counts the arrivals of each bucket, and starts all its collectives after the backward pass.
    """

    def __init__(self, parameters: list[nn.Parameter], group: Group, options: Options) -> None:
        super().__init__(parameters, group, options)
        capacity = int(float(options["bucket_mb"]) * 2**20)
        self.buckets = [Bucket(its) for its in _fill_buckets(parameters[::-1], capacity)]
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
            raise BackendError(f"fewer gradients arrived than in the first step. {_OTHER_PARTS}")
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
            raise BackendError(f"more gradients arrived than in the first step. {_OTHER_PARTS}")
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
    """One sum of all gradients in memory that all ranks map; only the set-up uses the group."""

    def __init__(self, parameters: list[nn.Parameter], group: Group, options: Options) -> None:
        super().__init__(parameters, group, options)
        self.shared = SharedSum(parameters, group)

    def reduce(self) -> None:
        self.shared.reduce(gradients_of(self.parameters))
        for parameter, view in zip(self.parameters, self.shared.views, strict=True):
            parameter.grad = view

    def message_bytes(self) -> list[int]:
        return [self.shared.nbytes]

    def make_replay(self) -> Callable[[], None]:
        gradients = [torch.zeros_like(p) for p in self.parameters]
        return partial(self.shared.reduce, gradients)

    def attest(self) -> Facts:
        return self.shared.attest()


def _fill_buckets(parameters: list[nn.Parameter], cap_bytes: int) -> list[list[nn.Parameter]]:
    """Return the parameters, in order, in buckets of one dtype and at most ``cap_bytes``.

    A parameter that is larger has a bucket of its own.
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
    """Sum a flat tensor over ``world`` ranks in place, by messages to the right neighbour.

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
    """Sum a tensor in place: reduce it to rank 0, which broadcasts the sum."""
    del rank, world
    dist.reduce(tensor, dst=0)
    dist.broadcast(tensor, src=0)


def reduce_scatter(tensor: torch.Tensor, rank: int, world: int) -> None:
    """Sum a flat tensor in place: each rank sums one of ``world`` equal parts, and all gather them."""
    del rank
    own = torch.empty_like(tensor[: tensor.numel() // world])
    dist.reduce_scatter_tensor(own, tensor)
    dist.all_gather_into_tensor(tensor, own)


def all_gather(tensor: torch.Tensor, rank: int, world: int) -> None:
    """Sum a flat tensor in place: each rank gathers the tensors of all ranks, and adds them up."""
    del rank
    gathered = tensor.new_empty(world * tensor.numel())
    dist.all_gather_into_tensor(gathered, tensor)
    torch.sum(gathered.view(world, -1), 0, out=tensor)


FORMS: dict[str, Callable[[torch.Tensor, int, int], None]] = {
    "ring": ring,
    "reduce_broadcast": reduce_broadcast,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
}


class PrimitiveReducer(FlatReducer):
    """One sum of all gradients of a dtype, by the function in ``FORMS`` that ``mode`` names."""

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

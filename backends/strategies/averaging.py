"""Average gradients by hand over any group.

The option ``mode`` chooses between one all-reduce per parameter, one for all, and one per bucket during the
backward pass. Ranks of one host can also average in memory that they share.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from backends.base import SPARSE, UNREACHED, BackendError, Collectives, Replica
from backends.shared_memory.sum import SharedSum
from backends.strategies.models import contiguous, require_carried, start_from_first_rank
from backends.strategies.reducer import Bucket, Reducer, by_dtype, gradients_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from backends.base import Facts, Group, MakeOptimizer, Options, Trait, Wait

MIB = 1 << 20


class AveragingReplica(Replica):
    """A replica that averages gradients over the group by a reducer: that of its option ``mode``.

    A subclass without such an option overrides ``make_reducer``.
    """

    needs_every_gradient = True

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        require_carried(model, group)
        start_from_first_rank(model, group)
        self._mode = {"mode": options["mode"]} if "mode" in options else {}
        trained = [p for p in model.parameters() if p.requires_grad]
        self.reducer = self.make_reducer(trained, group, options)
        self._share: torch.Tensor | None = None
        super().__init__(model, make_optimizer, group, options)

    def make_reducer(self, parameters: list[nn.Parameter], group: Group, options: Options) -> Reducer:
        """Return what sums the gradients of the trained ``parameters`` over all ranks."""
        mode = str(options["mode"])
        if mode in REDUCERS:
            return REDUCERS[mode](parameters, group, options)
        from backends.strategies.primitives import PrimitiveReducer  # it needs torch.distributed

        return PrimitiveReducer(parameters, group, options)

    @classmethod
    def unsupported_with(cls, options: Options) -> frozenset[Trait]:
        # Only torch.distributed adds up sparse tensors, and only the mode per_parameter sends them.
        adds_sparse = options.get("mode") == "per_parameter" and "process_group" in options
        return frozenset({UNREACHED} if adds_sparse else {UNREACHED, SPARSE})

    def backward(self, loss: torch.Tensor) -> None:
        # This makes each gradient the rank's share of the mean, without another pass over memory.
        if self._share is None:
            self._share = torch.full_like(loss, 1 / self.group.world_size)
        loss.backward(self._share)

    def sync(self) -> None:
        self.reducer.reduce()

    def collectives(self) -> Collectives | None:
        return Collectives(tuple(self.reducer.message_bytes()), self.reducer.make_replay())

    def attest(self) -> Facts:
        return super().attest() | {
            "reduce_op": "divided by the number of ranks in backward, then summed",
            **self._mode,
            "message_bytes": self.reducer.message_bytes(),
            **self.reducer.attest(),
        }


class PerParameterReducer(Reducer):
    """One blocking all-reduce per parameter, as tutorials write it.

    Tutorials divide the gradients after the sum, but this strategy divides in the backward pass. The latency
    of many calls makes this mode slow.
    """

    def reduce(self) -> None:
        for gradient in gradients_of(self.parameters):
            with contiguous([gradient]) as (sent,):
                self.group.all_reduce_(sent)

    def messages(self) -> list[torch.Tensor]:
        return [
            p if p.is_contiguous() else torch.empty_like(p, memory_format=torch.contiguous_format)
            for p in self.parameters
        ]


class FlatReducer(Reducer):
    """One blocking all-reduce of all gradients of a dtype, which are copied into a persistent buffer."""

    def __init__(self, parameters: list[nn.Parameter], group: Group, options: Options) -> None:
        super().__init__(parameters, group, options)
        self.buckets = [Bucket(its) for its in by_dtype(parameters)]

    def reduce(self) -> None:
        for bucket in self.buckets:
            bucket.collect()
            self.group.all_reduce_(bucket.flat)


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
        capacity = int(float(options["bucket_mb"]) * MIB)
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

    def messages(self) -> list[torch.Tensor]:
        return [torch.empty(self.shared.nbytes, dtype=torch.uint8, device="meta")]

    def make_replay(self) -> Callable[[], None]:
        gradients = [torch.zeros_like(p) for p in self.parameters]
        return partial(self.shared.reduce, gradients)

    def attest(self) -> Facts:
        return self.shared.attest()


REDUCERS: dict[str, type[Reducer]] = {
    "per_parameter": PerParameterReducer,
    "flat": FlatReducer,
    "overlap": OverlapReducer,
    "shared_memory": SharedMemoryReducer,
}


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

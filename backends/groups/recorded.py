"""Record the collectives that a step asks torch.distributed for, and repeat them without the training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode

from backends.collectives import Call, Collectives

# torch 2.13 warns of the old names; 2.11 has no others.
all_gather_ = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_ = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class _Operator(NamedTuple):
    """Where the arguments of one of torch's operators have what is recorded."""

    collective: str
    find_larger: Callable[[Sequence[Any]], torch.Tensor]
    """Return the larger of the two buffers."""


_OPERATORS: Mapping[str, _Operator] = {
    "c10d::_allgather_base_": _Operator("all_gather", lambda given: given[0]),
    "c10d::_reduce_scatter_base_": _Operator("reduce_scatter", lambda given: given[1]),
    "c10d::allreduce_": _Operator("all_reduce", lambda given: given[0][0]),
    "c10d::broadcast_": _Operator("broadcast", lambda given: given[0][0]),
    # A tensor in shards reduces through this one, as where gradients are clipped.
    "_c10d_functional::all_reduce": _Operator("all_reduce", lambda given: given[0]),
}
_WITHOUT_BYTES = (
    "c10d::barrier",
    "_c10d_functional::wait_tensor",
    "_c10d_functional::_wrap_tensor_autograd",
)


class _Recorded(NamedTuple):
    """One collective, with what repeats it."""

    call: Call
    dtype: torch.dtype
    group: dist.ProcessGroup
    root: int
    """The rank in ``group`` that a broadcast comes from; 0 for the others."""


class _Recorder(TorchDispatchMode):
    """A mode in which torch shows every operator, and those of torch.distributed are recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[_Recorded] = []
        self.unknown: set[str] = set()

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        # By name, because importing DTensor takes time in ranks that have none, and keeps their gradients.
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # so that its own collectives are shown, such as those of a norm
        if "c10d" in str(getattr(function, "namespace", "")):
            self._record(function.name().partition(".")[0], args)
        return function(*args, **(kwargs or {}))

    def _record(self, name: str, given: Sequence[Any]) -> None:
        if name in _WITHOUT_BYTES:
            return
        if name not in _OPERATORS:
            self.unknown.add(name)
            return
        operator, group = _OPERATORS[name], _group_among(given)
        larger, ranks = operator.find_larger(given), dist.get_process_group_ranks(group)
        call = Call(
            operator.collective, larger.nbytes, () if len(ranks) == dist.get_world_size() else (*ranks,)
        )
        root = int(given[2]) if operator.collective == "broadcast" else 0
        self.recorded.append(_Recorded(call, larger.dtype, group, root))


def _group_among(given: Sequence[Any]) -> dist.ProcessGroup:
    """Return the process group that an operator got, as an object or by its name."""
    if isinstance(given[-1], str):
        return cast("Any", distributed_c10d)._resolve_process_group(given[-1])  # noqa: SLF001
    objects = (one for one in given if isinstance(one, torch.ScriptObject))
    return dist.ProcessGroup.unbox(next(one for one in objects if "ProcessGroup" in str(one._type())))  # noqa: SLF001


def record_collectives(step: Callable[[], object], device: torch.device) -> Collectives | None:
    """Call ``step``, and return the collectives that it asked torch.distributed for.

    Every rank must call this at the same point. The collectives are repeated in their order, each after the
    one before, on buffers on ``device``. The result is None if there are none, or if the step called one that
    is not known here.
    """
    with _Recorder() as recorder:
        step()
    if recorder.unknown or not recorder.recorded:
        return None
    recorded = recorder.recorded
    largest: dict[torch.dtype, int] = {}
    for one in recorded:
        size = one.call.message_bytes // one.dtype.itemsize
        largest[one.dtype] = max(size, largest.get(one.dtype, 0))
    buffers = {dtype: torch.zeros(2 * size, dtype=dtype, device=device) for dtype, size in largest.items()}

    def run() -> None:
        for one in recorded:
            _repeat(one, buffers[one.dtype])

    sizes = tuple(one.call.message_bytes for one in recorded)
    return Collectives(sizes, run, tuple(one.call for one in recorded))


def _repeat(one: _Recorded, buffer: torch.Tensor) -> None:
    """Repeat a collective; ``buffer`` has room for its larger buffer twice."""
    size = one.call.message_bytes // one.dtype.itemsize
    larger, smaller = buffer[:size], buffer[size : size + size // one.group.size()]
    if one.call.collective == "all_gather":
        all_gather_(larger, smaller, group=one.group)
    elif one.call.collective == "reduce_scatter":
        reduce_scatter_(smaller, larger, group=one.group)
    elif one.call.collective == "all_reduce":
        dist.all_reduce(larger, group=one.group)
    else:
        dist.broadcast(larger, group=one.group, group_src=one.root)

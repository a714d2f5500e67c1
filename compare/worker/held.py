"""Count the memory of a training step by kind, as the bytes of tensors that the rank really holds.

Parameters and optimizer state are those between two steps, and gradients those at the end of the backward
pass. What a library gathers or keeps beside them counts as the library's. Activations are the tensors that
autograd saves for the backward pass, as torch's hooks for saved tensors see them. Inside ``torch.func`` and
compiled code there are no such hooks.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd import graph
from torch.utils._pytree import tree_leaves

from backends.base import Batch, Facts
from compare.schema.config import RunConfig
from compare.worker.blocks import Side


def take_counted_step(side: Side, config: RunConfig) -> Facts:
    """Train one step, and return its ``gradient_bytes``, ``library_bytes`` and ``activation_bytes``.

    The last two are None where they cannot be known. The hooks make the step slow, so it is never timed, but
    they change nothing that it computes.
    """
    replica = side.replica
    facts: Facts = {}
    saved, gathered = _Saved(), _Gathered(replica.model)
    in_view = not config.compile and not isinstance(replica.module, nn.DataParallel)

    def count(phase: str) -> None:
        if phase == "backward":
            kept = replica.library_bytes()
            facts["gradient_bytes"] = replica.held_bytes()["gradient_bytes"]
            facts["library_bytes"] = None if kept is None else kept + gathered.peak_bytes

    def loss(model: Callable[..., Any], batch: Batch) -> torch.Tensor:
        saved.leave_out(tensor for tensor in tree_leaves(batch) if isinstance(tensor, torch.Tensor))
        saved.leave_out([*replica.model.parameters(), *replica.model.buffers()])
        return side.loss(model, batch)

    with ExitStack() as hooks:
        if in_view:
            hooks.enter_context(saved.counting(gathered.look))
            hooks.enter_context(gathered.counting())
        side._replace(loss=loss).train(1, count)
    if not in_view and gathered.is_possible:
        facts["library_bytes"] = None
    return facts | {"activation_bytes": saved.peak_bytes if in_view else None}


def _memory_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the address and the bytes of the memory in which a tensor lies; of a ``DTensor`` the local part.

    Both are 0 for a sparse tensor, and for one without memory.
    """
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if local.layout != torch.strided or local.is_meta:
        return 0, 0
    storage = local.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


class _Gathered:
    """Counts parameters that a library gathers for a pass, beside the shards that the rank always holds.

    ``peak_bytes`` is the largest sum of their bytes at one time.
    """

    def __init__(self, model: nn.Module) -> None:
        self.peak_bytes = 0
        self.is_possible = any(hasattr(parameter, "to_local") for parameter in model.parameters())
        self._tables = [module._parameters for module in model.modules() if module._parameters]  # noqa: SLF001 -- a library replaces their values
        self._held = dict(map(_memory_of, self._parameters()))
        self.now: dict[int, int] = {}
        """The bytes of gathered memory by address, as last seen."""

    def look(self) -> dict[int, int]:
        """Look which parameters are gathered now, and return the bytes of their memory by address."""
        if self.is_possible:
            memory = dict(map(_memory_of, self._parameters()))
            self.now = {address: size for address, size in memory.items() if address not in self._held}
            self.peak_bytes = max(self.peak_bytes, sum(self.now.values()))
        return self.now

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Look after every module's forward pass, because a library gives up a unit after the unit's own."""

        def look(*_: object) -> None:
            self.look()

        hook = nn.modules.module.register_module_forward_hook(look)
        try:
            yield
        finally:
            hook.remove()

    def _parameters(self) -> Iterator[nn.Parameter]:
        return (parameter for table in self._tables for parameter in table.values() if parameter is not None)


class _Saved:
    """Counts tensors that are saved for the backward pass, each piece of memory once.

    Parameters, buffers and inputs are left out. ``peak_bytes`` is the largest sum at one time, because a pass
    may begin while tensors of another are still saved.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._bytes = 0
        self._uses = Counter[int]()
        self._left_out: set[int] = set()

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        """Leave out the memory of these tensors from now on."""
        self._left_out.update(_memory_of(tensor)[0] for tensor in tensors)

    @contextmanager
    def counting(self, look: Callable[[], dict[int, int]]) -> Iterator[None]:
        """Count the tensors that the block saves, but not memory at the addresses that ``look`` returns."""

        def pack(tensor: torch.Tensor) -> _Holder:
            holder = _Holder(tensor)
            address, size = _memory_of(tensor)
            if address and address not in self._left_out and address not in look():
                weakref.finalize(holder, self._release, address, size).atexit = False
                self._uses[address] += 1
                self._bytes += size if self._uses[address] == 1 else 0
                self.peak_bytes = max(self.peak_bytes, self._bytes)
            return holder

        def unpack(holder: _Holder) -> torch.Tensor:
            look()
            return holder.tensor

        with _leaving_out_functions_of_torch(pack, unpack), graph.saved_tensors_hooks(pack, unpack):
            yield

    def _release(self, address: int, size: int) -> None:
        self._uses[address] -= 1
        self._bytes -= 0 if self._uses[address] else size


class _Holder:
    """The object that autograd keeps in place of a saved tensor, until it no longer needs the tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


@contextmanager
def _leaving_out_functions_of_torch(pack: Callable[..., Any], unpack: Callable[..., Any]) -> Iterator[None]:
    """Take the hooks away inside ``torch.vmap`` and ``torch.func``, which refuse to run under any hooks."""
    disable = graph.disable_saved_tensors_hooks
    depth = 0

    @contextmanager
    def without_hooks(message: str) -> Iterator[None]:
        nonlocal depth
        if depth == 0:
            torch._C._autograd._pop_saved_tensors_default_hooks()  # noqa: SLF001 -- there is no public name
        depth += 1
        try:
            with disable(message):
                yield
        finally:
            depth -= 1
            if depth == 0:
                torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)  # noqa: SLF001

    graph.disable_saved_tensors_hooks = without_hooks  # type: ignore[assignment]  # another name of its argument
    try:
        yield
    finally:
        graph.disable_saved_tensors_hooks = disable

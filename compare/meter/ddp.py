"""Switch DistributedDataParallel's synchronising off and on, as its own ``no_sync`` does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from compare.meter.ranks import Ranks, StoreRanks
from compare.schema.metered import Synchronised

_BYTES_PER_MIB = 1 << 20


class Ddp:
    """One wrapped model."""

    def __init__(self, wrapper: Any) -> None:
        self.wrapper = wrapper
        self._on = True
        self._open = 0
        self._broadcasts_buffers = True

    @property
    def models(self) -> list[Any]:
        """Return the wrapper, with the model inside."""
        return [self.wrapper]

    def join(self, meeting: int) -> Ranks:
        """Return the ranks of the wrapper's process group."""
        return StoreRanks(self.wrapper.process_group, meeting)

    @property
    def obstacle(self) -> str:
        """Return why this wrapper cannot be switched; empty if it can."""
        config = getattr(self.wrapper, "_join_config", None)
        return "its ranks may have different numbers of batches (join)" if config and config.enable else ""

    def switch(self, *, on: bool) -> None:
        """Synchronise from the next step on, or do not."""
        if on == self._on:
            return
        self._on = on
        # A forward pass broadcasts buffers only if the backward pass before it was synchronised.
        if on:
            self.wrapper.require_forward_param_sync = self._broadcasts_buffers
        else:
            self._broadcasts_buffers = self.wrapper.require_forward_param_sync
        if not self._open:
            self.wrapper.require_backward_grad_sync = on

    @contextmanager
    def _within_no_sync(self) -> Iterator[None]:
        """Enter a ``no_sync`` of the script's own: it wins inside, and the meter's switch counts after it."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self.wrapper.require_backward_grad_sync = self._on

    def describe(self) -> Synchronised:
        """Return what is synchronised, as the library reports it."""
        wrapper = self.wrapper
        gradients = [parameter for parameter in wrapper.module.parameters() if parameter.requires_grad]
        known = _logged(wrapper)
        sizes = known.get("rebuilt_bucket_sizes") or known.get("bucket_sizes") or ""
        return Synchronised(
            way="ddp",
            name=type(wrapper).__name__,
            model=type(wrapper.module).__name__,
            tensors=len(gradients),
            gradient_bytes=sum(gradient.nbytes for gradient in gradients),
            messages=[int(size) for size in str(sizes).replace(",", " ").split()],
            settings={
                "bucket_cap_mb": f"{wrapper.bucket_bytes_cap / _BYTES_PER_MIB:g}",
                "find_unused_parameters": str(wrapper.find_unused_parameters),
                "gradient_as_bucket_view": str(wrapper.gradient_as_bucket_view),
                "static_graph": str(wrapper.static_graph),
                "comm_hook": str(known.get("comm_hook", "")),
            },
        )

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Let a ``no_sync`` of the script's own win inside, and the meter's switch count again after it."""
        original = DistributedDataParallel.no_sync

        @contextmanager
        @functools.wraps(original)
        def no_sync(wrapper: Any) -> Iterator[None]:
            with self._within_no_sync() if wrapper is self.wrapper else nullcontext(), original(wrapper):
                yield

        DistributedDataParallel.no_sync = no_sync  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            DistributedDataParallel.no_sync = original  # type: ignore[method-assign]

    def marking_waits(self, mark: Callable[[str], None]) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return a context that does nothing, because the backward pass waits for all gradients."""
        return nullcontext()

    def start_messages(self) -> Callable[[], None]:
        """Start an all-reduce for each of DDP's buckets, in the precision of the first gradient."""
        first = next(parameter for parameter in self.wrapper.parameters() if parameter.requires_grad)
        lengths = [max(1, size // first.itemsize) for size in self.describe().messages]
        zeros = [torch.zeros(length, dtype=first.dtype, device=first.device) for length in lengths]
        works = [dist.all_reduce(zero, group=self.wrapper.process_group, async_op=True) for zero in zeros]

        def wait() -> None:
            for work in works:
                work.wait()

        return wait


def _logged(wrapper: Any) -> dict[str, Any]:
    """Return what DDP logs about itself; empty where it does not."""
    try:
        return wrapper._get_ddp_logging_data()  # noqa: SLF001 -- buckets are shown nowhere else
    except (AttributeError, RuntimeError):
        return {}

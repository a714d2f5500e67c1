"""Train through torch's DistributedDataParallel, which averages buckets of gradients during backward."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from backends.base import REPEATED, UNREACHED, BackendError, Replica
from backends.collectives import Collectives

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

    from backends.base import Batch, Facts, Group, Loss, MakeOptimizer, Options, Trait

DEFAULT_CAP_MB = 25
"""DDP's default size of a bucket in MiB."""
_HOOKS = {"fp16_compress_hook": "fp16", "bf16_compress_hook": "bf16", "powerSGD_hook": "powersgd"}
"""The choices of ``comm_hook`` by the names under which DDP logs the hooks."""


class DDPReplica(Replica):
    """A replica whose model is wrapped in DDP, which averages gradients during the backward pass."""

    phases = ("forward", "backward", "step")
    broadcasts_buffers = True

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        self.wrapped = self._wrap(model, group, options)
        self.needs_every_gradient = not options.get("find_unused_parameters")
        self._static_graph = bool(options.get("static_graph"))
        self._passes_done = 0
        self._powersgd_state = _register_hook(self.wrapped, options)
        super().__init__(model, make_optimizer, group, options)

    def _wrap(self, model: nn.Module, group: Group, options: Options) -> DistributedDataParallel:
        """Return the model wrapped in DDP, whose constructor broadcasts rank 0's parameters."""
        devices = [group.device] if group.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices, **ddp_arguments(options))

    @classmethod
    def unsupported_with(cls, options: Options) -> frozenset[Trait]:
        return frozenset({UNREACHED} if options.get("static_graph") else {UNREACHED, REPEATED})

    def accumulate(self, passes: int) -> None:
        if passes > 1 and self._static_graph:
            # torch 2.13 fails one of its assertions in the first step.
            raise BackendError(
                "DDP cannot accumulate with static_graph=true. Leave out static_graph or --accumulate."
            )
        super().accumulate(passes)

    @property
    def module(self) -> nn.Module:
        return self.wrapped

    def learn(self, batch: Batch, loss: Loss, on_phase: Callable[[str], None] = lambda _: None) -> None:
        with self._in_pass():
            super().learn(batch, loss, on_phase)
        self._passes_done += 1

    def _in_pass(self) -> AbstractContextManager[None]:
        """Return the context of a pass, which keeps DDP from communicating before the last pass of a step."""
        return nullcontext() if self._is_last_pass() else self.wrapped.no_sync()

    def _is_last_pass(self) -> bool:
        return (self._passes_done + 1) % self.passes_per_step == 0

    def library_bytes(self) -> int | None:
        facts = self.attest()
        if facts["comm_hook"] != "none":
            return None  # a hook has tensors of its own
        return 0 if facts["gradient_as_bucket_view"] else sum(facts["bucket_bytes"])

    def attest(self) -> Facts:
        logged = self.wrapped._get_ddp_logging_data()  # noqa: SLF001 -- DDP shows its buckets nowhere else
        hook = str(logged.get("comm_hook") or "none")
        sizes = logged.get("rebuilt_bucket_sizes") or logged["bucket_sizes"] or ""
        facts = super().attest() | {
            "reduce_op": "mean",
            "bucket_cap_bytes": logged["bucket_cap_bytes"],
            "bucket_bytes": [int(size) for size in sizes.split(",") if size.strip()],
            "gradient_as_bucket_view": bool(logged["gradient_as_bucket_view"]),
            # The logger has it only if it is set.
            "static_graph": bool(logged.get("static_graph")),
            "find_unused_parameters": bool(logged["find_unused_parameters"]),
            "comm_hook": _HOOKS.get(hook, hook),
        }
        if self._powersgd_state:
            rate, before, after = self._powersgd_state.compression_stats()
            facts |= {
                "powersgd_rank": self._powersgd_state.matrix_approximation_rank,
                "powersgd_start": self._powersgd_state.start_powerSGD_iter,
                "compression_rate": round(rate, 3),
                "elements_before_compression": before,
                "elements_after_compression": after,
            }
        return facts

    def collectives(self) -> Collectives | None:
        if self.attest()["comm_hook"] != "none":
            return None  # the hook decides what travels, and that is smaller than the buckets
        dtypes = {parameter.dtype for parameter in self.parameters if parameter.requires_grad}
        if len(dtypes) > 1:
            return None  # a bucket has one dtype, and DDP does not say which
        buckets = [
            torch.zeros(size // dtype.itemsize, dtype=dtype, device=self.group.device)
            for dtype in dtypes
            for size in self.attest()["bucket_bytes"]
        ]
        # DDP starts a bucket as soon as it is full, and waits for all at the end.
        return Collectives.of(buckets, self.group.all_reduce_start_)


def ddp_arguments(options: Options) -> dict[str, Any]:
    """Return the keyword arguments of DDP's constructor that the options of an arm ask for."""
    cap = options["bucket_cap_mb"]
    return {
        # torch's default is 25 too, but with the number given there is no small first bucket.
        "bucket_cap_mb": None if cap == DEFAULT_CAP_MB else cap,
        **{
            name: bool(options.get(name))
            for name in ("gradient_as_bucket_view", "static_graph", "find_unused_parameters")
        },
    }


def _register_hook(wrapped: DistributedDataParallel, options: Options) -> PowerSGDState | None:
    """Register the communication hook that the options choose, and return PowerSGD's state.

    The result is None if they choose another hook, or none.

    Raises:
        BackendError: torch does not support the hook on this machine.
    """
    kind = options.get("comm_hook", "none")
    if kind == "none":
        return None
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if kind == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            None,
            matrix_approximation_rank=int(options["powersgd_rank"]),
            start_powerSGD_iter=int(options["powersgd_start"]),
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return state
    try:
        wrapped.register_comm_hook(None, getattr(default_hooks, f"{kind}_compress_hook"))
    except TypeError as error:
        raise BackendError(
            f"torch refuses comm_hook={kind} here: {error}. Choose another comm_hook."
        ) from None
    return None

"""torch's DistributedDataParallel: buckets all-reduced while backward still runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.parallel import DistributedDataParallel

from backends.base import Collectives
from backends.strategies.local import LocalReplica

if TYPE_CHECKING:
    from torch import nn

    from backends.base import Facts, Group, MakeOptimizer, Options

DEFAULT_CAP_MB = 25


class DDPReplica(LocalReplica):
    """Backward and communication are one phase: DDP offers no seam between them."""

    phases = ("forward", "backward", "step")

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        # The constructor broadcasts rank 0's parameters.
        self.wrapped = DistributedDataParallel(
            model,
            device_ids=[group.device] if group.device.type == "cuda" else None,
            # torch's own default is 25 too, but asked for by number it loses its small first bucket.
            bucket_cap_mb=None if options["bucket_cap_mb"] == DEFAULT_CAP_MB else options["bucket_cap_mb"],
            gradient_as_bucket_view=bool(options["gradient_as_bucket_view"]),
            static_graph=bool(options["static_graph"]),
        )
        super().__init__(model, make_optimizer, group, options)
        self.group = group

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.wrapped(inputs)

    def attest(self) -> Facts:
        seen = self.wrapped._get_ddp_logging_data()  # noqa: SLF001 -- the only place where DDP tells its buckets
        return {
            "reduce_op": "mean",
            "bucket_cap_bytes": seen["bucket_cap_bytes"],
            "bucket_bytes": _sizes(seen.get("rebuilt_bucket_sizes") or seen["bucket_sizes"]),
            "gradient_as_bucket_view": bool(seen["gradient_as_bucket_view"]),
            # The logger names it only where it is set.
            "static_graph": bool(seen.get("static_graph")),
            "comm_hook": seen.get("comm_hook") or "none",
        }

    def collectives(self) -> Collectives | None:
        parameter = next(self.model.parameters())
        sizes = tuple(self.attest()["bucket_bytes"])
        buckets = [
            torch.zeros(size // parameter.element_size(), dtype=parameter.dtype, device=parameter.device)
            for size in sizes
        ]

        def run() -> None:
            # DDP starts a bucket as soon as it is full, and waits for all at the end.
            for work in [self.group.all_reduce_start_(bucket) for bucket in buckets]:
                work.wait()

        return Collectives(sizes, run)


def _sizes(text: str | None) -> list[int]:
    return [int(size) for size in (text or "").split(",") if size.strip()]

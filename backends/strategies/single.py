"""Train the global batch in one process, to show what distribution gains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.base import BackendError
from backends.strategies.local import LocalReplica

if TYPE_CHECKING:
    from torch import nn

    from backends.base import Facts, Group, MakeOptimizer, Options


class SingleReplica(LocalReplica):
    """A replica of a launch with one process, which trains on the whole data set."""

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        if group.world_size > 1:
            raise BackendError(
                f"single: the launcher started {group.world_size} ranks, but it trains in one process. "
                "Start one rank."
            )
        super().__init__(model, make_optimizer, group, options)

    def attest(self) -> Facts:
        return super().attest() | {"reduce_op": "mean"}

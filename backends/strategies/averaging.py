"""Average gradients by hand over any group; the option ``mode`` chooses the reducer that sums them."""

from __future__ import annotations

import torch
from torch import nn

from backends.base import SPARSE, UNREACHED, Facts, Group, MakeOptimizer, Options, Replica, Trait
from backends.collectives import Collectives
from backends.strategies.models import require_summable, start_from_first_rank
from backends.strategies.reducers import REDUCERS, Reducer


class AveragingReplica(Replica):
    """A replica whose gradients a reducer sums over the group; the option ``mode`` names the reducer.

    A subclass without this option overrides ``make_reducer``.
    """

    needs_every_gradient = True

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        require_summable(model, group)
        start_from_first_rank(model, group)
        self._mode_fact = {"mode": options["mode"]} if "mode" in options else {}
        trained = [p for p in model.parameters() if p.requires_grad]
        self.reducer = self.make_reducer(trained, group, options)
        self._loss_gradient: torch.Tensor | None = None
        super().__init__(model, make_optimizer, group, options)

    def make_reducer(self, parameters: list[nn.Parameter], group: Group, options: Options) -> Reducer:
        """Return the reducer that sums the gradients of the trained ``parameters`` over all ranks."""
        return REDUCERS[str(options["mode"])](parameters, group, options)

    @classmethod
    def unsupported_with(cls, options: Options) -> frozenset[Trait]:
        # Only torch.distributed adds up sparse tensors, and only the mode per_parameter sends them.
        adds_sparse = options.get("mode") == "per_parameter" and "process_group" in options
        return frozenset({UNREACHED} if adds_sparse else {UNREACHED, SPARSE})

    def backward(self, loss: torch.Tensor) -> None:
        # With this loss gradient, the ranks' gradients add up to the mean, without another pass over memory.
        if self._loss_gradient is None:
            self._loss_gradient = torch.full_like(loss, 1 / self.group.world_size)
        loss.backward(self._loss_gradient)

    def sync(self) -> None:
        self.reducer.reduce()

    def library_bytes(self) -> int | None:
        return self.reducer.kept_bytes()

    def collectives(self) -> Collectives | None:
        return Collectives(tuple(self.reducer.message_bytes()), self.reducer.make_replay())

    def attest(self) -> Facts:
        return super().attest() | {
            "reduce_op": "divided by the number of ranks in backward, then summed",
            **self._mode_fact,
            "message_bytes": self.reducer.message_bytes(),
            **self.reducer.attest(),
        }

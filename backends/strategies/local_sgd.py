"""Train each rank alone for some steps, then average the parameters.

This is local SGD, and with ``outer=nesterov`` it is DiLoCo (https://arxiv.org/abs/2311.08105). DiLoCo uses
the averaged change of the parameters as the gradient of an outer optimizer: SGD with Nesterov's momentum.
"""

from __future__ import annotations

import torch
from torch import nn

from backends.base import UNCOPIED, Facts, Group, MakeOptimizer, Options, Replica
from backends.strategies.models import copy_with, require_summable, start_from_first_rank
from backends.strategies.reducers import Bucket, by_dtype

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9
"""Learning rate and momentum of the outer optimizer, as in the paper on DiLoCo."""


class LocalSGDReplica(Replica):
    """A replica that trains alone, and whose parameters all ranks average every ``period`` steps.

    The optimizer's state and the buffers are not averaged.
    """

    phases = ("forward", "backward", "step")
    averages_gradients = False
    unsupported = frozenset({UNCOPIED})

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        require_summable(model, group)
        start_from_first_rank(model, group)
        self.cycle = int(options["period"])
        self._steps_alone = 0
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._buckets = [Bucket(parameters) for parameters in by_dtype(self._trained)]
        self._outer: torch.optim.SGD | None = None
        self._outer_parameters: list[torch.Tensor] = []
        """The parameters of the outer optimizer; empty without one."""
        if options["outer"] == "nesterov":
            self._outer_parameters = [p.detach().clone() for p in self._trained]
            self._outer = torch.optim.SGD(
                self._outer_parameters, OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True
            )
        super().__init__(model, make_optimizer, group, options)

    @torch.no_grad()
    def step(self) -> None:
        super().step()
        self._steps_alone += 1
        if self._steps_alone == self.cycle:
            self._steps_alone = 0
            averages = self._means()
            if self._outer:
                # With this gradient, the outer step goes towards the means.
                for outer, mean in zip(self._outer_parameters, averages, strict=True):
                    outer.grad = outer - mean
                self._outer.step()
                self._outer.zero_grad()
                averages = self._outer_parameters
            torch._foreach_copy_([*self._trained], averages)

    def _means(self) -> list[torch.Tensor]:
        """Return each trained parameter's mean over all ranks, in order, by one all-reduce per dtype.

        Every rank must call this. The next call overwrites the returned tensors.
        """
        means: dict[int, torch.Tensor] = {}
        for bucket in self._buckets:
            torch._foreach_copy_(bucket.views, [*bucket.parameters])
            bucket.flat.div_(self.group.world_size)
            self.group.all_reduce_(bucket.flat)
            means |= {id(p): view for p, view in zip(bucket.parameters, bucket.views, strict=True)}
        return [means[id(parameter)] for parameter in self._trained]

    @torch.no_grad()
    def whole(self) -> nn.Module:
        if not self._steps_alone:
            return self.model  # all ranks have the average
        means = {id(p): mean for p, mean in zip(self._trained, self._means(), strict=True)}
        return copy_with(self.model, lambda tensor: means.get(id(tensor), tensor).detach().clone())

    def held_bytes(self) -> Facts:
        if not self._outer:
            return super().held_bytes()
        momentum = [state["momentum_buffer"] for state in self._outer.state.values()]
        held = self._outer_parameters + momentum
        return super().held_bytes() | {"outer_bytes": sum(tensor.nbytes for tensor in held)}

    def library_bytes(self) -> int | None:
        held = self.held_bytes()
        return sum(bucket.padded.nbytes for bucket in self._buckets) + int(held.get("outer_bytes", 0))

    def attest(self) -> Facts:
        # With period 1, averaging parameters is averaging gradients if a step is linear in its gradient.
        linear = isinstance(self.optimizer, torch.optim.SGD)
        averages_gradients = self.cycle == 1 and linear and not self._outer
        return super().attest() | {
            "reduce_op": "mean" if averages_gradients else f"mean of parameters, period {self.cycle}",
            "period": self.cycle,
            "outer": "nesterov" if self._outer else "none",
        }

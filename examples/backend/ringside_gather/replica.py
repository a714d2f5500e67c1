"""How the arm synchronises. Only its ranks import this."""

import torch
import torch.distributed as dist

from backends.base import Replica
from backends.collectives import Collectives
from backends.strategies.models import require_summable, start_from_first_rank


class GatherReplica(Replica):
    """Average gradients from copies of all ranks' gradients."""

    needs_every_gradient = True

    def __init__(self, model, make_optimizer, group, options):
        require_summable(model, group)
        start_from_first_rank(model, group)
        self.group, self.in_one_call = group, options["calls"] == "one"
        self.trained = [p for p in model.parameters() if p.requires_grad]
        super().__init__(model, make_optimizer, group, options)

    def sync(self):
        gradients = [p.grad for p in self.trained]
        if not self.in_one_call:
            for gradient in gradients:
                gradient.copy_(self._mean(gradient.flatten()).view_as(gradient))
            return
        mean = self._mean(torch.cat([g.flatten() for g in gradients]))
        for gradient, its in zip(gradients, mean.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(its.view_as(gradient))

    def _mean(self, flat):
        ranks = self.group.world_size
        copies = flat.new_empty(ranks * flat.numel())
        dist.all_gather_into_tensor(copies, flat)
        return copies.view(ranks, -1).mean(0)

    def messages(self):
        """Return the elements of each call of a step."""
        sizes = [p.numel() for p in self.trained]
        return [sum(sizes)] if self.in_one_call else sizes

    def collectives(self):
        flats = [self.trained[0].detach().new_zeros(size) for size in self.messages()]
        element = self.trained[0].element_size()
        return Collectives(
            tuple(size * element for size in self.messages()), lambda: [self._mean(flat) for flat in flats]
        )

    def attest(self):
        return {
            "reduce_op": "mean",
            "passes_per_step": self.passes_per_step,
            "message_bytes": list(self.collectives().message_bytes),
        }

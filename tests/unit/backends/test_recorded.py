"""What is recorded of a step's collectives, in a group of this process alone."""

from __future__ import annotations

import torch
import torch.distributed as dist

from backends.collectives import Call
from backends.groups.recorded import all_gather_, reduce_scatter_


def test_collectives_are_recorded_in_their_order_with_the_larger_buffer(group):
    def step():
        dist.all_reduce(torch.zeros(5))
        group.barrier()
        dist.broadcast(torch.zeros(3, dtype=torch.float64), src=0)
        all_gather_(torch.zeros(4), torch.zeros(4))
        reduce_scatter_(torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16))

    recorded = group.record(step)
    names = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
    assert recorded.message_bytes == (20, 24, 16, 4)
    assert recorded.calls == tuple(map(Call, names, recorded.message_bytes))
    assert group.record(recorded.run).calls == recorded.calls, "run repeats them"


def test_step_with_an_unknown_collective_is_not_recorded(group):
    def step():
        dist.all_reduce(torch.zeros(5))
        dist.all_gather([torch.zeros(4)], torch.zeros(4))

    assert group.record(step) is None
    assert group.record(lambda: None) is None

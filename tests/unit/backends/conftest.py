"""A real group of this process alone."""

import pytest
import torch
import torch.distributed as dist

from backends.base import Placement
from backends.groups.torch_group import TorchGroup

# PowerSGD's callbacks hold the group, and a thread of the group itself drops them, perhaps after the test. If
# that was the last reference, the thread joins itself, and the process aborts: "Resource deadlock avoided".
ENDED = []


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    ENDED.append(dist.group.WORLD)
    yield TorchGroup(Placement(0, 0, 1, 1, "here"), torch.device("cpu"))
    dist.destroy_process_group()

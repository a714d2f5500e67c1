"""The arm own_torch."""

from __future__ import annotations

from backends.arms._shared import PROCESS_GROUP
from backends.entry import Backend

ARM = Backend(
    name="own_torch",
    summary="the distributed step of your own Workload, over torch.distributed",
    group="backends.groups.torch_group:TorchGroup",
    strategy="backends.strategies.own:OwnReplica",
    code=("backends.strategies.own:OwnReplica.learn",),
    options=(PROCESS_GROUP,),
    only_named=True,
    own_step=True,
)

"""The arm fsdp."""

from __future__ import annotations

from backends.arms._shared import PROCESS_GROUP
from backends.entry import Backend

ARM = Backend(
    name="fsdp",
    summary="fully_shard (FSDP2): parameters, gradients and optimizer state in shards",
    group="backends.groups.torch_group:TorchGroup",
    strategy="backends.strategies.fsdp:FSDPReplica",
    code=("backends.strategies.fsdp:_shard",),
    options=(PROCESS_GROUP,),
    only_named=True,
    shards="parameters",
)

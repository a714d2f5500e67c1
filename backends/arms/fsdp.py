"""Register the arm ``fsdp``, which trains through torch's ``fully_shard``."""

from backends.arms.shared import PROCESS_GROUP
from backends.entry import Backend

ARM = Backend(
    name="fsdp",
    summary="fully_shard (FSDP2): parameters, gradients and optimizer state in shards",
    strategy="backends.strategies.fsdp:FSDPReplica",
    code=("backends.strategies.fsdp:_shard",),
    options=(PROCESS_GROUP,),
    only_named=True,
    shards="parameters",
)

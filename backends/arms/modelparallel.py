"""The arm modelparallel."""

from __future__ import annotations

from backends.arms._shared import PROCESS_GROUP
from backends.entry import Backend

ARM = Backend(
    name="modelparallel",
    summary="each rank holds some layers, and computes them for the global batch while others wait",
    group="backends.groups.torch_group:TorchGroup",
    strategy="backends.strategies.pipeline:ModelParallelReplica",
    code=("backends.strategies.pipeline:_Pass.run",),
    options=(PROCESS_GROUP,),
    only_named=True,
    shards="layers",
)

"""The arm modelparallel."""

from backends.arms._shared import PROCESS_GROUP
from backends.entry import Backend

ARM = Backend(
    name="modelparallel",
    summary="each rank holds some layers, and computes them for the global batch while others wait",
    strategy="backends.strategies.pipeline:ModelParallelReplica",
    code=("backends.strategies.pipeline:_Pass.run",),
    options=(PROCESS_GROUP,),
    only_named=True,
    shards="layers",
)

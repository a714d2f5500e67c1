"""Register the arm ``modelparallel``, whose ranks hold different layers."""

from backends.arms.shared import PROCESS_GROUP
from backends.entry import Backend

ARM = Backend(
    name="modelparallel",
    summary="each rank holds some layers, and computes them for the global batch while others wait",
    strategy="backends.strategies.pipeline:PipelineReplica",
    code=("backends.strategies.pipeline:_Pass.run",),
    options=(PROCESS_GROUP,),
    only_named=True,
    shards="layers",
)

"""The arm pipeline."""

from backends.arms.shared import PROCESS_GROUP
from backends.entry import Backend, Option

ARM = Backend(
    name="pipeline",
    summary="torch.distributed.pipelining: each rank holds some layers, microbatches pass through",
    strategy="backends.strategies.pipeline:PipelineReplica",
    code=("backends.strategies.pipeline:_Pass.run",),
    options=(
        PROCESS_GROUP,
        Option(
            "schedule",
            "1f1b",
            "a backward pass follows each forward pass, or all of them the last one",
            ("1f1b", "gpipe"),
        ),
        Option("microbatches", 4, "equal parts of a pass, each with its mean loss"),
    ),
    only_named=True,
    shards="layers",
)

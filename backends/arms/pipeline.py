"""Register the arm ``pipeline``, whose ranks hold different layers and pass microbatches on."""

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
            "1f1b alternates forward and backward passes; gpipe runs all forward passes first",
            ("1f1b", "gpipe"),
        ),
        Option("microbatches", 4, "equal parts of a pass, each with its mean loss"),
    ),
    only_named=True,
    shards="layers",
)

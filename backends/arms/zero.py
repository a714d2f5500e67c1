"""Register the arm ``zero``, which shards the optimizer's state over DDP."""

from backends.arms.shared import BUCKET_CAP_MB, BUCKET_VIEW, PROCESS_GROUP
from backends.entry import Backend, Option

ARM = Backend(
    name="zero",
    summary="ZeRO stage 1, by ZeroRedundancyOptimizer over DDP: each rank updates and keeps state for a part",
    strategy="backends.strategies.zero:ZeroReplica",
    code=(
        "backends.strategies.ddp:DDPReplica._wrap",
        "backends.strategies.zero:ZeroReplica.step",
    ),
    options=(
        PROCESS_GROUP,
        BUCKET_CAP_MB,
        BUCKET_VIEW,
        Option(
            "parameters_as_bucket_view",
            default=False,
            summary="one broadcast for each rank's parameters, not one for each parameter",
        ),
    ),
    only_named=True,
    shards="optimizer state",
)

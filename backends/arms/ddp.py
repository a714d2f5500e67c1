"""The arm ddp."""

from backends.arms._shared import BUCKET_CAP_MB, BUCKET_VIEW, FIND_UNUSED, FP16, PROCESS_GROUP
from backends.entry import Backend, Option

# bfloat16 keeps 8 bits, where half precision keeps 11.
_BF16 = FP16 * 2**3
# A low rank keeps the most important directions, and adds the rest to the next step's gradient.
_LOW_RANK = 2.0

ARM = Backend(
    name="ddp",
    summary="torch.nn.parallel.DistributedDataParallel",
    strategy="backends.strategies.ddp:DDPReplica",
    code=("backends.strategies.ddp:DDPReplica._wrap",),
    options=(
        PROCESS_GROUP,
        BUCKET_CAP_MB,
        BUCKET_VIEW,
        Option(
            "static_graph",
            "switch",
            default=False,
            summary="promise that the graph never changes",
            accumulates=False,
        ),
        FIND_UNUSED,
        Option(
            "comm_hook",
            "choice",
            "none",
            "what travels in the place of gradients: rounded ones, or matrices of a low rank",
            ("none", "fp16", "bf16", "powersgd"),
            lossy={"fp16": FP16, "bf16": _BF16, "powersgd": _LOW_RANK},
            cuda_only=("bf16",),
        ),
        Option(
            "powersgd_rank",
            "count",
            1,
            "rank of the matrices that travel",
            needs=("comm_hook", "powersgd"),
        ),
        Option(
            "powersgd_start",
            "count",
            10,
            "first step that is compressed; within the warm-up, or both kinds of steps are timed",
            least=2,  # DDP rebuilds its buckets in the second step, and PowerSGD stores their sizes
            needs=("comm_hook", "powersgd"),
            while_proven=2,
        ),
    ),
)

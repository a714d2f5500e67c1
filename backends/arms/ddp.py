"""Register the arm ``ddp``, which trains through torch's DistributedDataParallel."""

from backends.arms.shared import BF16, BUCKET_CAP_MB, BUCKET_VIEW, FIND_UNUSED, FP16, LOW_RANK, PROCESS_GROUP
from backends.entry import Backend, Option

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
            default=False,
            summary="promise torch that the graph never changes",
            accumulates=False,
        ),
        FIND_UNUSED,
        Option(
            "comm_hook",
            "none",
            "what DDP sends instead of the gradients: rounded gradients, or matrices of a low rank",
            ("none", "fp16", "bf16", "powersgd"),
            lossy={"fp16": FP16, "bf16": BF16, "powersgd": LOW_RANK},
            cuda_only=("bf16",),
        ),
        Option("powersgd_rank", 1, "rank of the matrices that DDP sends", needs=("comm_hook", "powersgd")),
        Option(
            "powersgd_start",
            10,
            "first compressed step; choose one within the warm-up, or uncompressed steps are timed too",
            least=2,  # DDP rebuilds its buckets in the second step, and PowerSGD stores their sizes
            needs=("comm_hook", "powersgd"),
            while_proven=2,
        ),
    ),
)

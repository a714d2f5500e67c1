"""Register every way of synchronising gradients that can be compared.

The registry holds strings, so that reading it imports no library. A new backend is one entry here. Its
group or strategy is one file, if it is new.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from backends.entries import Backend as Backend
from backends.entries import GroupEntry as GroupEntry
from backends.entries import Option as Option

if TYPE_CHECKING:
    from backends.base import Group, Options, Replica


_PROCESS_GROUP = Option(
    "process_group", "choice", "auto", "auto is NCCL on CUDA and Gloo on CPU", ("auto", "nccl", "gloo")
)
_BUCKET_CAP_MB = Option("bucket_cap_mb", "number", 25.0, "MiB of gradients per bucket")
_BUCKET_VIEW = Option(
    "gradient_as_bucket_view", "switch", default=False, summary="gradients live in the buckets"
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
    rebuild="pip install 'ringside[mpi]' && compare install horovod --force",
)
# Half precision keeps 11 bits, bfloat16 8. There is one rounding of the input and one for each addition.
_FP16 = 2.0**-8
_BF16 = 2.0**-5
# A low rank keeps the most important directions, and adds the rest to the next step's gradient.
_LOW_RANK = 2.0
_AVERAGING = "backends.strategies.averaging:AveragingReplica"

BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend(
            name="none",
            summary="the control: the same ranks, no communication, no library",
            group="backends.groups.none:NoGroup",
            strategy="backends.strategies.local:LocalReplica",
            launcher="torchrun",
            libraries=(),
            synchronises=False,
        ),
        Backend(
            name="ddp",
            summary="torch.nn.parallel.DistributedDataParallel",
            group="backends.groups.torch_group:TorchGroup",
            strategy="backends.strategies.ddp:DDPReplica",
            launcher="torchrun",
            libraries=(),
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
                Option(
                    "find_unused_parameters",
                    "switch",
                    default=False,
                    summary="allow parameters that take no part in the loss",
                ),
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
            launcher="torchrun",
            libraries=(),
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
            install="pip install 'ringside[mpi]'",
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
                _BUCKET_MB,
            ),
        ),
        Backend(
            name="zero",
            summary="ZeroRedundancyOptimizer over DDP: each rank updates and keeps state for a part",
            group="backends.groups.torch_group:TorchGroup",
            strategy="backends.strategies.zero:ZeroReplica",
            launcher="torchrun",
            libraries=(),
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
            launcher="torchrun",
            libraries=(),
            options=(_PROCESS_GROUP,),
            only_named=True,
            shards="parameters",
        ),
        Backend(
            name="own_torch",
            summary="the distributed step of your own Workload, over torch.distributed",
            group="backends.groups.torch_group:TorchGroup",
            strategy="backends.strategies.own:OwnReplica",
            launcher="torchrun",
            libraries=(),
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
            install="pip install 'ringside[mpi]'",
            only_named=True,
            cuda=False,
            own_step=True,
        ),
        Backend(
            name="single",
            summary="one process with all threads and the global batch: should I distribute at all?",
            group="backends.groups.none:NoGroup",
            strategy="backends.strategies.single:SingleReplica",
            launcher="torchrun",
            libraries=(),
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

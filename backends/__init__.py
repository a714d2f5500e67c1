"""Register every way of synchronising gradients that can be compared.

The registry holds strings, so that reading it imports no library. A new backend is one entry here. Its
group or strategy is one file, if it is new.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backends.base import Group, Options, OptionValue, Replica


@dataclass(frozen=True, slots=True)
class Option:
    """One setting of a backend, as written in an arm: ``backend:name=value``."""

    name: str
    kind: Literal["choice", "number", "count", "switch"]
    default: OptionValue
    summary: str
    choices: tuple[str, ...] = ()
    """What a ``choice`` may be; empty for the other kinds."""
    least: int = 1
    """The smallest that a ``count`` may be."""
    strategies: Mapping[str, str] = field(default_factory=dict)
    """Choices with another strategy than the backend's: ``module:class`` of the Replica."""
    lossy: Mapping[str, float] = field(default_factory=dict)
    """Choices that change the arithmetic on purpose, each with its tolerance.

    The tolerance is the distance of an averaged gradient from the mean, over the largest number in its
    tensor.
    """
    cuda_only: tuple[str, ...] = ()
    """Choices that the library refuses on the CPU."""
    accumulates: bool = True
    """False for a switch that rules out gradient accumulation."""
    compiles_from: float = 0.0
    """The smallest number with which torch.compile works."""
    needs: tuple[str, str] | None = None
    """Another option and its value that this option needs."""
    offered_in: str = ""
    """Fact of the library that lists the choices it was built with.

    It is empty if the library always has all choices.
    """
    rebuild: str = ""
    """The command that installs the library with every choice."""
    while_proven: OptionValue | None = None
    """Its value in the proof of parity; None keeps the arm's value.

    The proof takes few steps, which would not show what an option delays.
    """


@dataclass(frozen=True, slots=True)
class Backend:
    """A group with a strategy, described without importing them."""

    name: str
    summary: str
    group: str
    """``module:class`` of the Group."""
    strategy: str
    """``module:class`` of the Replica."""
    launcher: str
    """The default launcher; an allocation may need another."""
    libraries: tuple[str, ...]
    """Distributions that must be installed beside torch."""
    install: str = ""
    """The command that installs what is missing."""
    options: tuple[Option, ...] = ()
    on_one_host: Mapping[str, OptionValue] = field(default_factory=dict)
    """Options of a second default arm, for ranks on one host's CPUs."""
    synchronises: bool = True
    """False only for the control: its ranks train alone and differ."""
    cuda: bool = True
    """Whether it can average tensors in GPU memory."""
    runs_while_waiting: bool = False
    """Whether threads of its library run while its ranks wait outside it."""
    only_named: bool = False
    """Whether it runs only when it is named."""
    one_process: bool = False
    """Whether it always runs as one process with the global batch."""
    training: Literal["same", "same at period 1", "another"] = "same"
    """Whether it trains what a single process trains.

    ``same at period 1``: only with the options ``while_proven``. ``another``: never; its accuracy and loss
    have to be read beside its speed.
    """
    zeros_for_unused: bool = False
    """Whether parameters without a gradient get zeros, which weight decay then moves."""
    shards: Literal["nothing", "optimizer state", "parameters"] = "nothing"
    """What is divided among the ranks.

    With divided parameters, equal hashes of the gathered copies prove nothing. Only the reference does.
    """


_PROCESS_GROUP = Option(
    "process_group", "choice", "auto", "auto is NCCL on CUDA and Gloo on CPU", ("auto", "nccl", "gloo")
)
# torch splits compiled graphs by buckets, and refuses any that are smaller than its first one of 1 MiB.
_BUCKET_CAP_MB = Option("bucket_cap_mb", "number", 25.0, "MiB of gradients per bucket", compiles_from=1.0)
_BUCKET_VIEW = Option(
    "gradient_as_bucket_view", "switch", default=False, summary="gradients live in the buckets"
)
_BUCKET_MB = Option(
    "bucket_mb", "number", 1.0, "overlap only: MiB of gradients per all-reduce", needs=("mode", "overlap")
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
                Option(
                    "controller",
                    "choice",
                    "gloo",
                    "who negotiates and carries tensors",
                    ("gloo", "mpi"),
                    offered_in="controllers",
                    rebuild="pip install 'ringside[mpi]' && compare install horovod --force",
                ),
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

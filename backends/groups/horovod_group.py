"""Join Horovod, whose background thread reduces over Gloo, MPI or NCCL."""

from __future__ import annotations

import ctypes
import os
import statistics
import timeit
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import ClassVar, Self

import horovod
import horovod.torch as hvd
import torch

from backends import evidence, single_copy
from backends.arms.shared import CONTROLLER
from backends.base import BackendError, Facts, Group, Options, Placement, Wait
from backends.collectives import Buffers

_OPERATIONS = {"sum": hvd.Sum, "prod": hvd.Product, "min": hvd.Min, "max": hvd.Max, "avg": hvd.Average}
_CYCLE_SAMPLES = 15


class HorovodGroup(Group):
    """All ranks of a launch, which are Horovod's global process set."""

    name: ClassVar[str] = "horovod"
    unsupported_dtypes: ClassVar[frozenset[str]] = frozenset(
        {"torch.bfloat16", "torch.complex64", "torch.complex128"}
    )

    @classmethod
    def join(
        cls, placement: Placement, device: torch.device, options: Options, timeout_seconds: float
    ) -> Self:
        del timeout_seconds  # Horovod only warns of a stall; the rank's watchdog ends it
        if device.type == "cuda":
            if not hvd.cuda_built():
                raise BackendError(
                    "this Horovod is built without CUDA, but the run is on a GPU. Use --device cpu, or set "
                    "CUDA_HOME to a CUDA toolkit and run `ringside setup horovod`."
                )
            torch.cuda.set_device(device)
        # hvd.init reads the environment once, so these are the settings that the library uses.
        settings = _settings()
        hvd.init()
        if (hvd.rank(), hvd.size()) != (placement.rank, placement.world_size):
            raise BackendError(
                f"Horovod has rank {hvd.rank()} of {hvd.size()}, but the launcher has {placement.rank} of "
                f"{placement.world_size}. Probably horovodrun belongs to another installation. Run "
                "`ringside setup horovod --force` with this Python."
            )
        controller = CONTROLLER.value_in(options)
        if _active_controller() != controller:
            raise BackendError(
                f"the arm needs the {controller} controller, but Horovod runs "
                f"{_active_controller()}. If HOROVOD_CONTROLLER is set in the environment, unset it."
            )
        return cls(placement, device, settings)

    def __init__(self, placement: Placement, device: torch.device, settings: Facts) -> None:
        super().__init__(placement, device)
        self._settings = settings
        self._in_flight: set[int] = set()

    def barrier(self) -> None:
        hvd.barrier()

    def all_reduce_(self, tensor: torch.Tensor) -> None:
        self.all_reduce_start_(tensor)()

    def all_reduce_start_(self, tensor: torch.Tensor) -> Wait:
        # Horovod caches negotiations by name. A tensor without a name gets a new one every time, which
        # costs 0.5 ms a call on two ranks. Ranks start and wait in one order, so numbers agree on all ranks.
        number = next(n for n in count() if n not in self._in_flight)
        self._in_flight.add(number)
        handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name=f"ringside.{number}.{tensor.numel()}")

        def wait() -> None:
            hvd.synchronize(handle)
            self._in_flight.discard(number)

        return wait

    def _collectives(self, buffers: Buffers) -> Mapping[str, Callable[[], torch.Tensor]]:
        source, target, operation = buffers.source, buffers.target, _OPERATIONS[buffers.operation]
        # As in all_reduce_start_, a name saves the negotiation.
        name = f"ringside.{buffers.collective}.{source.dtype}.{buffers.operation}.{source.numel()}"
        return {
            "all_reduce": buffers.calling(partial(hvd.allreduce_, target, op=operation, name=name)),
            "all_gather": partial(hvd.allgather, source, name=name),
            "reduce_scatter": partial(hvd.reducescatter, source, op=operation, name=name),
            "broadcast": buffers.calling(partial(hvd.broadcast_, target, root_rank=0, name=name)),
            "all_to_all": partial(hvd.alltoall, source, name=name),
            "barrier": buffers.calling(hvd.barrier),
        }

    def broadcast_(self, tensor: torch.Tensor, root: int = 0) -> None:
        hvd.broadcast_(tensor, root_rank=root)

    def attest(self) -> Facts:
        controller = _active_controller()
        transport = self._transport(controller)
        by_mpi = controller == "mpi" and transport != "NCCL"
        return {
            "library": f"Horovod {horovod.__version__}",
            "versions": {"horovod": horovod.__version__, "torch": str(torch.__version__)} | self._nccl_fact(),
            "controller": controller,
            "transport": transport,
            "observed_cycle_milliseconds": self._measure_cycle(),
            **self._settings,
            **(single_copy.attest(self, transport) if by_mpi else {}),
        }

    def leave(self) -> None:
        hvd.shutdown()

    def _transport(self, controller: str) -> str:
        if self.device.type == "cuda" and hvd.nccl_built():
            return "NCCL"
        if controller == "mpi":
            return evidence.mpi_transport(self.world_size)
        return evidence.tcp_transport(self.world_size)

    def _nccl_fact(self) -> Facts:
        """Return the fact of the NCCL that Horovod was built for; empty on a CPU or without NCCL."""
        code = int(hvd.nccl_built()) if self.device.type == "cuda" else 0
        # NCCL_VERSION_CODE of nccl.h: 22809 is 2.28.9.
        return {"nccl": f"{code // 10_000}.{code // 100 % 100}.{code % 100}"} if code else {}

    def _measure_cycle(self) -> float:
        """Return the cycle time of Horovod's background thread in milliseconds; all ranks must call this.

        It is the median time of an all-reduce of one number, because each of them takes about one cycle.
        """
        tensor = torch.zeros(1, device=self.device)
        reduce = partial(hvd.allreduce_, tensor, op=hvd.Sum, name="ringside.cycle")
        return round(statistics.median(timeit.repeat(reduce, number=1, repeat=_CYCLE_SAMPLES)) * 1e3, 3)


def _active_controller() -> str:
    return "mpi" if hvd.mpi_enabled() else "gloo"


def _settings() -> Facts:
    """Return settings that Horovod 0.28 reads from the environment, or its defaults (operations.cc)."""
    libc = ctypes.CDLL(None)
    libc.strtol.restype, libc.strtod.restype = ctypes.c_long, ctypes.c_double

    def read_integer(name: str, default: int) -> int:
        return int(libc.strtol(os.environ.get(name, str(default)).encode(), None, 10))

    return {
        "fusion_bytes": read_integer("HOROVOD_FUSION_THRESHOLD", 128 << 20),
        "cycle_milliseconds": float(libc.strtod(os.environ.get("HOROVOD_CYCLE_TIME", "1").encode(), None)),
        "autotune": read_integer("HOROVOD_AUTOTUNE", 0) > 0,
    }

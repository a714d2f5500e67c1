"""Horovod: a background thread negotiates over a controller and reduces over Gloo, MPI or NCCL."""

from __future__ import annotations

import os
import re
import statistics
import time
from itertools import count
from typing import TYPE_CHECKING, ClassVar, Self

import horovod
import horovod.torch as hvd
import torch

from backends import evidence
from backends.base import BackendError, Group, Work

if TYPE_CHECKING:
    from backends.base import Facts, Options, Placement

_PROBES = 15
_AS_STRTOL = re.compile(r"\s*[+-]?\d+")
_AS_STRTOF = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


class HorovodWork(Work):
    """A tensor in the hands of the background thread."""

    def __init__(self, handle: int, number: int, in_flight: set[int]) -> None:
        self._handle = handle
        self._number = number
        self._in_flight = in_flight

    def wait(self) -> None:
        hvd.synchronize(self._handle)
        self._in_flight.discard(self._number)


class HorovodGroup(Group):
    """Horovod's global process set."""

    name: ClassVar[str] = "horovod"

    @classmethod
    def join(
        cls, placement: Placement, device: torch.device, options: Options, timeout_seconds: float
    ) -> Self:
        del timeout_seconds  # Horovod only warns of a stall: the rank's watchdog ends it
        if device.type == "cuda":
            torch.cuda.set_device(device)
        # hvd.init reads the environment once; what stands there now is what the library takes.
        settings = _settings()
        hvd.init()
        if (hvd.rank(), hvd.size()) != (placement.rank, placement.world_size):
            raise BackendError(
                f"Horovod says rank {hvd.rank()} of {hvd.size()}, the launcher said {placement.rank} of "
                f"{placement.world_size}: horovodrun belongs to another installation"
            )
        if _controller() != options["controller"]:
            raise BackendError(
                f"the arm asks for the {options['controller']} controller, Horovod runs the {_controller()} "
                "one: was HOROVOD_CONTROLLER set in the environment?"
            )
        return cls(placement, device, settings)

    def __init__(self, placement: Placement, device: torch.device, settings: Facts) -> None:
        super().__init__(placement, device)
        self._settings = settings
        self._in_flight: set[int] = set()

    def barrier(self) -> None:
        hvd.barrier()

    def all_reduce_(self, tensor: torch.Tensor) -> None:
        self.all_reduce_start_(tensor).wait()

    def all_reduce_start_(self, tensor: torch.Tensor) -> Work:
        # Horovod remembers by name what was negotiated, and a tensor without one gets a new one every time:
        # 0.5 ms more a call on two ranks. Ranks start and wait in one order: a number means the same on all.
        number = next(n for n in count() if n not in self._in_flight)
        self._in_flight.add(number)
        handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name=f"ringside.{number}.{tensor.numel()}")
        return HorovodWork(handle, number, self._in_flight)

    def broadcast_(self, tensor: torch.Tensor, root: int = 0) -> None:
        hvd.broadcast_(tensor, root_rank=root)

    def attest(self) -> Facts:
        controller = _controller()
        return {
            "library": f"Horovod {horovod.__version__}",
            "versions": {"horovod": horovod.__version__, "torch": str(torch.__version__)},
            "controller": controller,
            "transport": self._transport(controller),
            "observed_cycle_milliseconds": self._observe_cycle(),
        } | self._settings

    def leave(self) -> None:
        hvd.shutdown()

    def _transport(self, controller: str) -> str:
        if self.device.type == "cuda" and hvd.nccl_built():
            return "NCCL"
        if controller == "mpi":
            return evidence.mpi_transport(self.world_size)
        return evidence.tcp_transport(self.world_size)

    def _observe_cycle(self) -> float:
        """Measure the pace of the background thread: a lone tiny tensor takes one cycle."""
        tensor = torch.zeros(1, device=self.device)
        paces = []
        for _ in range(_PROBES):
            begun = time.perf_counter_ns()
            hvd.allreduce_(tensor, op=hvd.Sum, name="ringside.cycle")
            paces.append(time.perf_counter_ns() - begun)
        return round(statistics.median(paces) / 1e6, 3)


def _controller() -> str:
    return "mpi" if hvd.mpi_enabled() else "gloo"


def _settings() -> Facts:
    """Read what Horovod is about to read, as it does; the defaults are its own (operations.cc, 0.28)."""
    return {
        "fusion_bytes": int(_number("HOROVOD_FUSION_THRESHOLD", 128 << 20, _AS_STRTOL)),
        "cycle_milliseconds": _number("HOROVOD_CYCLE_TIME", 1.0, _AS_STRTOF),
        "autotune": _number("HOROVOD_AUTOTUNE", 0, _AS_STRTOL) > 0,
    }


def _number(name: str, default: float, form: re.Pattern[str]) -> float:
    """Read the number that a variable begins with; one that begins with none counts as 0."""
    text = os.environ.get(name)
    if text is None:
        return default
    number = form.match(text)
    return float(number.group()) if number else 0.0

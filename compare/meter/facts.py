"""Read what a rank runs on."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from operator import sub
from typing import Any

import torch
import torch.distributed as dist

from compare.schema.metered import MeteredRank
from compare.system.load import Counts, children_ns, read_counts


def rank_facts(rank: int, models: Sequence[Any], kept_bytes: int) -> MeteredRank:
    """Return the facts of this process."""
    parameter = next((parameter for model in models for parameter in model.parameters()), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    return MeteredRank(
        rank=rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        device=str(device),
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else "",
        threads=torch.get_num_threads(),
        cpus=sorted(os.sched_getaffinity(0)),
        kept_bytes=kept_bytes,
    )


class Load:
    """The load of the CPUs that this process may use, since the object was made."""

    def __init__(self) -> None:
        self._cpus = os.sched_getaffinity(0)
        self._counts, self._children = self._read()

    def seconds(self) -> tuple[float, float]:
        """Return the CPU time of this process with its children, and the busy time of all its CPUs.

        Both are 0 where the kernel does not tell.
        """
        counts, children = self._read()
        passed = Counts(*map(sub, counts, self._counts))
        own = passed.own + children - self._children
        return max(0, own) / 1e9, passed.busy(len(self._cpus)) / 1e9

    def _read(self) -> tuple[Counts, int]:
        try:
            return read_counts(self._cpus), children_ns()
        except OSError:
            return Counts(), 0


def first_rank() -> bool:
    """Return whether this process is rank 0, by its group or launcher; also true without both."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    names = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    return next((os.environ[name] for name in names if name in os.environ), "0") == "0"

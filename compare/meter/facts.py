"""Read what a rank runs on."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from operator import sub

import torch
import torch.distributed as dist

from compare.schema.metered import MeteredRank
from compare.system.limits import memory_left_bytes
from compare.system.load import Counts, children_ns, read_counts
from compare.text import counted

_ROOM = 1.2
"""How much memory must be free, as a multiple of what is kept."""


def rank_facts(rank: int, device: torch.device, kept_bytes: int) -> MeteredRank:
    """Return the facts of this process, whose parameters are on a device."""
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


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a device in bytes."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else memory_left_bytes()


def find_shortage(ranks: Sequence[tuple[MeteredRank, int]]) -> str:
    """Return for which ranks the state that is put back has no room, as a sentence; empty if it has.

    Each rank comes with the bytes that it found free. On a GPU they are its own, but the ranks of a host
    found the same memory of its CPUs.
    """
    for first, _ in ranks:
        share = [
            (rank, free)
            for rank, free in ranks
            if rank is first or (rank.host == first.host and rank.device == first.device == "cpu")
        ]
        needed, free = sum(rank.kept_bytes for rank, _ in share), min(free for _, free in share)
        if needed * _ROOM > free:
            others = f" with {counted(len(share) - 1, 'other rank')}" if len(share) > 1 else ""
            return (
                f"Rank {first.rank} on {first.host}{others} cannot keep what is put back: it has "
                f"{needed / 1e6:.0f} MB, and {free / 1e6:.0f} MB of memory are free."
            )
    return ""


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

"""Define a barrier for the ranks of one host, by semaphores in shared memory."""

from __future__ import annotations

import ctypes
import os
import time
from itertools import chain
from typing import TYPE_CHECKING

import torch

from backends.shared_memory.layout import SEMAPHORE_BYTES

if TYPE_CHECKING:
    import mmap

    from backends.base import Group

CHECKS_BEFORE_SLEEP = 500
"""Number of checks before sleeping, which take a few hundred microseconds; waking up takes some tens."""
SLEEP_SECONDS = 0.1
"""Maximum time for one sleep; between two sleeps Python handles signals."""


class Meeting:
    """A barrier that makes visible to all ranks what any rank wrote before it.

    Every ordered pair of ranks has one semaphore. POSIX requires that semaphore functions synchronise
    memory (IEEE 1003.1, 4.12), on every architecture. Plain flags would be loads and stores, whose order
    only x86 keeps.
    """

    def __init__(self, memory: mmap.mmap, group: Group) -> None:
        self._libc = ctypes.CDLL(None)  # not PyDLL: a rank that sleeps must let its other threads run
        self._memory = torch.frombuffer(memory, dtype=torch.uint8)
        first, world = self._memory.data_ptr(), group.world_size
        table = [
            [ctypes.c_void_p(first + SEMAPHORE_BYTES * (world * writer + reader)) for reader in range(world)]
            for writer in range(world)
        ]
        others = [rank for rank in range(world) if rank != group.rank]
        self._to = [table[group.rank][other] for other in others]
        self._from = [table[other][group.rank] for other in others]
        if group.rank == 0:
            for semaphore in chain.from_iterable(table):
                # Shared between processes, and 0 at the start.
                self._libc.sem_init(semaphore, ctypes.c_int(1), ctypes.c_uint(0))
        group.barrier()

    def meet(self) -> None:
        """Wait until every rank has called this method as often as this rank has."""
        for semaphore in self._to:
            self._libc.sem_post(semaphore)
        for semaphore in self._from:
            self._await(semaphore)

    def _await(self, semaphore: ctypes.c_void_p) -> None:
        """Wait for the semaphore: first poll it and yield the core, then sleep on it.

        Only the rank's watchdog limits the wait. The other rank's post wakes a rank that sleeps. With naps of
        100 microseconds instead, three ranks on two cores took 15 % longer.
        """
        for _ in range(CHECKS_BEFORE_SLEEP):
            if not self._libc.sem_trywait(semaphore):
                return
            os.sched_yield()
        while self._libc.sem_timedwait(semaphore, ctypes.byref(_Time.after(SLEEP_SECONDS))):
            pass


class _Time(ctypes.Structure):
    """A ``struct timespec``."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

    @classmethod
    def after(cls, seconds: float) -> _Time:
        """Return the time that many seconds from now, by the real-time clock that semaphores use."""
        return cls(*divmod(time.time_ns() + int(seconds * 1e9), 1_000_000_000))

"""Map the same memory in all ranks of a host, and let the ranks wait for each other in it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from backends.base import BackendError, Group

SEMAPHORE_BYTES = 64
"""Size of a cache line; each semaphore has a line of its own, so that ranks write to different lines."""
CHECKS_BEFORE_SLEEP = 500
"""Number of checks of a semaphore before a rank sleeps; they take a few hundred microseconds."""
SLEEP_NANOSECONDS = 100_000_000
"""Maximum time of one sleep; between two sleeps Python handles signals."""

_BROADCAST_BYTES = 256
_CLOSE_ON_EXEC = 1
"""MFD_CLOEXEC of linux/memfd.h."""


_OTHER_HOST, _NOT_OPENED, _NO_MEMORY = range(1, 4)
_PROBLEMS = {
    _OTHER_HOST: "mode=shared_memory needs all ranks on one host, but {ranks} and rank 0 are on different "
    "hosts. Put all ranks on one host, or use mode=flat.",
    _NOT_OPENED: "mode=shared_memory: {ranks} cannot open the memory of rank 0 on the same host. "
    "Run all ranks as one user and in one container, or use mode=flat.",
    _NO_MEMORY: "mode=shared_memory needs {megabytes:.1f} MB of memory on this host, and {ranks} could not "
    "reserve a part of it. Free memory, raise the container's limit, or use mode=flat.",
}
"""The messages for the reasons why ranks cannot map the memory."""


def map_together(group: Group, nbytes: int, reserved: Sequence[tuple[int, int]]) -> tuple[mmap.mmap, str]:
    """Map the same new memory in every rank; return it, and its name in ``/proc/self/maps``.

    The memory is in no file system, so nothing remains of it, however the ranks end. The size of /dev/shm,
    which containers limit, does not matter.

    Args:
        group: the ranks; every rank must call this function.
        nbytes: the size of the whole memory in bytes.
        reserved: the offset and the length in bytes of each part that this rank reserves.

    Raises:
        BackendError: a rank cannot map the memory; all ranks raise this.
    """
    name = f"ringside-gradients-{secrets.token_hex(8)}"
    created, opened, problem, reason, boot = -1, -1, _NOT_OPENED, "", "unknown"
    if group.rank == 0:
        try:
            boot, created = _boot_identity(), _create(name)
        except OSError as error:
            reason = f" ({error.strerror})"
    pid, descriptor, name, boot = _broadcast_words(group, str(os.getpid()), str(created), name, boot)
    try:
        if boot in {"unknown", _boot_identity()}:
            opened = _open(f"/proc/{pid}/fd/{descriptor}", name)
            problem = _NO_MEMORY
            # A lack of memory would later be a fatal signal.
            os.ftruncate(opened, nbytes)
            for offset, length in reserved:
                os.posix_fallocate(opened, offset, length)
            problem = 0
        else:
            problem = _OTHER_HOST
    except OSError as error:
        reason = reason or f" ({error.strerror})"
    try:
        _require_no_problem(group, problem, nbytes, reason)  # after this no rank needs rank 0's descriptor
        return mmap.mmap(opened, nbytes), name
    finally:
        for handle in {created, opened} - {-1}:
            os.close(handle)


def sharing_problem() -> str:
    """Return a clause that states why ranks cannot share memory on this machine; empty if they can."""
    name, descriptors = "ringside-probe", []
    try:
        descriptors.append(_create(name))
        descriptors.append(_open(f"/proc/{os.getpid()}/fd/{descriptors[0]}", name))
        _boot_identity()
    except OSError as error:
        return f"memory cannot be shared here ({error.strerror})"
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return ""


def mapped_bytes(name: str) -> int:
    """Return how many bytes of the memory called ``name`` this process has mapped."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if name in line:
            begin, _, end = line.split()[0].partition("-")
            total += int(end, 16) - int(begin, 16)
    return total


def _create(name: str) -> int:
    """Create memory that is in no file system, and return its descriptor.

    This calls ``memfd_create`` in libc, because a Python that was built on an old libc lacks it.
    """
    try:
        create = ctypes.CDLL(None, use_errno=True).memfd_create
    except AttributeError:
        raise OSError(errno.ENOSYS, "the C library has no memfd_create") from None
    descriptor = int(create(name.encode(), ctypes.c_uint(_CLOSE_ON_EXEC)))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


def _open(path: str, name: str) -> int:
    """Open the memory ``name`` by the path of its descriptor in ``/proc``, and return a new descriptor.

    If rank 0 is in another process namespace, its process number belongs to another process here, or to none.
    The memory's name then differs, or there is no such path.

    Raises:
        OSError: the path leads to anything but the memory, or cannot be opened.
    """
    if str(Path(path).readlink()) != f"/memfd:{name} (deleted)":
        raise FileNotFoundError(errno.ENOENT, "the process ID of rank 0 belongs to another process here")
    return os.open(path, os.O_RDWR)


def _require_no_problem(group: Group, problem: int, nbytes: int, reason: str) -> None:
    """Exchange the ranks' problems, and raise an error on all ranks if any rank has one.

    ``problem`` is this rank's key of ``_PROBLEMS``, or 0. ``reason`` ends the error on a rank with a problem.

    Raises:
        BackendError: some ranks cannot map the memory, which the message names.
    """
    problems = torch.zeros(group.world_size, dtype=torch.int64)
    problems[group.rank] = problem
    group.all_reduce_(problems)
    for kind, text in _PROBLEMS.items():
        ranks = [rank for rank, its_problem in enumerate(problems.tolist()) if its_problem == kind]
        if ranks:
            names = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
            message = text.format(ranks=names, megabytes=nbytes / 1e6)
            raise BackendError(message + (reason if group.rank in ranks else ""))


def _boot_identity() -> str:
    """Return the kernel's boot id, which is the same for all processes of a host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _broadcast_words(group: Group, *words: str) -> list[str]:
    """Return the words of rank 0 on every rank; they have no blanks, and at most 256 bytes in all."""
    text = torch.frombuffer(bytearray(" ".join(words).encode().ljust(_BROADCAST_BYTES)), dtype=torch.uint8)
    group.broadcast_(text)
    return bytes(text.tolist()).decode().split()


class Barrier:
    """A barrier in shared memory; what any rank wrote before it is visible to all ranks after it.

    Every ordered pair of ranks has one semaphore. POSIX requires that semaphore functions synchronise
    memory (IEEE 1003.1, 4.12), on every architecture. Plain flags would be loads and stores, whose order
    only x86 keeps.
    """

    def __init__(self, memory: mmap.mmap, group: Group) -> None:
        self._libc = ctypes.CDLL(None)  # not PyDLL: a rank that sleeps must let its other threads run
        self._memory = torch.frombuffer(memory, dtype=torch.uint8)
        first, world = self._memory.data_ptr(), group.world_size
        table = [ctypes.c_void_p(first + SEMAPHORE_BYTES * number) for number in range(world**2)]
        peers = [rank for rank in range(world) if rank != group.rank]
        self._to_peers = [table[world * group.rank + peer] for peer in peers]
        self._from_peers = [table[world * peer + group.rank] for peer in peers]
        if group.rank == 0:
            for semaphore in table:
                # Shared between processes, and 0 at the start.
                self._libc.sem_init(semaphore, ctypes.c_int(1), ctypes.c_uint(0))
        group.barrier()

    def wait(self) -> None:
        """Wait until every rank has called this method as often as this rank has."""
        for semaphore in self._to_peers:
            self._libc.sem_post(semaphore)
        for semaphore in self._from_peers:
            self._wait_for(semaphore)

    def _wait_for(self, semaphore: ctypes.c_void_p) -> None:
        """Wait until another rank posts the semaphore: first check it again and again, then sleep.

        Between checks the rank yields its core. There is no time limit, except the rank's watchdog. With naps
        of 100 microseconds instead of the sleep, three ranks on two cores took 15 % longer.
        """
        for _ in range(CHECKS_BEFORE_SLEEP):
            if not self._libc.sem_trywait(semaphore):
                return
            os.sched_yield()
        timed_out = True
        while timed_out:
            # A ``struct timespec`` of the real-time clock, which semaphores use.
            until = (ctypes.c_long * 2)(*divmod(time.time_ns() + SLEEP_NANOSECONDS, 1_000_000_000))
            timed_out = bool(self._libc.sem_timedwait(semaphore, until))

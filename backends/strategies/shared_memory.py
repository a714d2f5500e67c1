"""Averaging in memory that all ranks of one host have mapped: what the machine itself could do.

Every rank reduces one part in N of the gradients, its chunk. In a step it

1. writes what it has of the other chunks into its slot of the shared memory,
2. meets the others, so that all slots are written,
3. adds up its own chunk in the order of ranks, divides by N, and writes that into the result,
4. meets them again, so that all of the result is written, and takes views of it for gradients.

It is Rabenseifner's reduce-scatter and all-gather ("Optimization of Collective Reduction Operations",
ICCS 2004), but nothing is gathered: the result is read where it lies. Each chunk is reduced by one rank
and read by all, so the ranks are bitwise alike by construction.

For gradients of G bytes a rank moves (3 - 1/N) G through memory: (N-1)/N read and written in 1, G read
and G/N written in 3. Where everyone writes everything and reduces everything, one meeting is saved, and
(N + 3) G are moved. For N = 2 that is 5 G to 2.5 G, while a meeting costs about a microsecond.

**One buffer of each kind is enough.** Nobody leaves a meeting before all have come to it.

- A slot is written before the first meeting and read between the two. Whoever writes it for the next
  step has left the second one, to which all came after reading.
- The result is written between the two and read from the second one on, by the optimizer. Whoever writes
  it in the next step has left that step's first meeting, to which a rank comes only when its optimizer is
  done. What a rank writes into the result itself would reach the others, so that is looked for.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import secrets
import time
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from backends.base import BackendError

if TYPE_CHECKING:
    from torch import nn

    from backends.base import Facts, Group

BLOCK_BYTES = 256 << 10
"""Of each summand, added and divided at a time: small enough for both passes to be made in a core's cache."""
SEMAPHORE_BYTES = 64
"""A cache line for each, twice what a sem_t takes, so that ranks do not disturb each other's."""
OFFER_BYTES = 256
CHECKS_BEFORE_SLEEP = 500
"""A few hundred microseconds: waking up from sleep costs tens of them, and ranks are often less apart."""
SLEEP_SECONDS = 0.1
"""After which a rank that was not woken looks around: signals are handled, and threads get their turn."""


class SharedMean:
    """The mean of gradients over the ranks of one host."""

    def __init__(self, parameters: list[nn.Parameter], group: Group) -> None:
        """Map the shared memory; every rank must call it, with parameters of the same shapes.

        Raises:
            BackendError: the ranks are not on CPUs of one host, memory is short, or dtypes are mixed.
        """
        dtype = _common_dtype(parameters, group)
        lengths = [p.numel() for p in parameters]
        self.layout = Layout(group.world_size, sum(lengths), dtype.itemsize)
        self._rank = group.rank
        self._memory, self._name = _share(group, self.layout)
        self._meeting = Meeting(self._memory, group)
        slots = [self._tensor(self.layout.slot(rank), dtype) for rank in range(group.world_size)]
        self._result = self._tensor(self.layout.result, dtype)
        self._version = self._result._version  # noqa: SLF001 -- the counter that autograd itself goes by
        pieces = self._result.split(lengths)
        self.views = [piece.view(p.shape) for piece, p in zip(pieces, parameters, strict=True)]
        """What ``average`` fills, one tensor a parameter."""

        own = self.layout.chunk_of(self._rank)
        others = (range(own.start), range(own.stop, sum(lengths)))
        self._exported = [piece for part in others for piece in _cut(lengths, part)]
        self._exports = [slots[self._rank][p.at] for p in self._exported]
        self._reduced = _cut(lengths, own)
        self._block = BLOCK_BYTES // dtype.itemsize * torch.get_num_threads()
        others_slots = slots[: self._rank] + slots[self._rank + 1 :]
        self._results = [self._result[p.at].split(self._block) for p in self._reduced]
        self._summands = [
            list(zip(*(slot[p.at].split(self._block) for slot in others_slots), strict=True))
            or [()] * len(blocks)
            for p, blocks in zip(self._reduced, self._results, strict=True)
        ]

    def average(self, gradients: list[torch.Tensor]) -> None:
        """Fill ``views`` with the mean of all ranks' gradients. They hold until the next call.

        Raises:
            BackendError: something was written into ``views`` since the last call.
        """
        self._require_untouched()
        flat = [gradient.reshape(-1) for gradient in gradients]
        if self._exports:
            torch._foreach_copy_(self._exports, [flat[p.parameter][p.part] for p in self._exported])
        self._meeting.meet()
        for piece, results, summands in zip(self._reduced, self._results, self._summands, strict=True):
            own = flat[piece.parameter][piece.part].split(self._block)
            for result, others, mine in zip(results, summands, own, strict=True):
                _mean(result, [*others[: self._rank], mine, *others[self._rank :]])
        self._meeting.meet()
        self._version = self._result._version  # noqa: SLF001

    @property
    def nbytes(self) -> int:
        """Bytes of gradients that are averaged in a step."""
        return self.layout.elements * self.layout.element_size

    def attest(self) -> Facts:
        """Say through what gradients travel, as the kernel's table of this process's mappings has it."""
        mapped = _mapped_bytes(self._name)
        if self.layout.world == 1:
            return {"transport": "none (one rank)", "shared_bytes": mapped}
        return {"transport": "shared memory" if mapped else "none", "shared_bytes": mapped}

    def _tensor(self, offset: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.frombuffer(self._memory, dtype=dtype, count=self.layout.elements, offset=offset)

    def _require_untouched(self) -> None:
        if self._result._version != self._version:  # noqa: SLF001
            raise BackendError(
                "averaged gradients were written to: with mode=shared_memory all ranks read the same ones, "
                "so whatever adds to them, clips them or zeroes them in place does it to every rank's; use "
                "mode=flat, or keep to zero_grad(set_to_none=True) and leave them alone"
            )


class Piece(NamedTuple):
    """A part of a parameter, and its place among the elements of all of them."""

    parameter: int
    part: slice
    at: slice


@dataclass(frozen=True, slots=True)
class Layout:
    """Where what lies in the shared memory: semaphores, a slot for every rank, the result.

    Chunks are whole pages. So no cache line has two writers, and the pages that a rank writes to can be
    reserved by itself, which puts them into the memory next to it where there are several.
    """

    world: int
    elements: int
    element_size: int

    @property
    def chunk_bytes(self) -> int:
        """Size of what one rank reduces; for the last ones there may be less, or nothing."""
        return _round_up(-(-self.elements * self.element_size // self.world), mmap.PAGESIZE)

    @property
    def head_bytes(self) -> int:
        """Size of the semaphores' part."""
        return _round_up(SEMAPHORE_BYTES * self.world**2, mmap.PAGESIZE)

    @property
    def result(self) -> int:
        """Where the result begins."""
        return self.slot(self.world)

    @property
    def nbytes(self) -> int:
        """Size of it all."""
        return self.slot(self.world + 1)

    def slot(self, rank: int) -> int:
        """Where a rank's slot begins."""
        return self.head_bytes + rank * self.world * self.chunk_bytes

    def chunk_of(self, rank: int) -> range:
        """Return the elements that a rank reduces."""
        size = self.chunk_bytes // self.element_size
        return range(min(self.elements, rank * size), min(self.elements, (rank + 1) * size))

    def written_by(self, rank: int) -> list[tuple[int, int]]:
        """List offset and length of what a rank writes: nobody ever touches its own chunk in its slot."""
        chunk, slot = self.chunk_bytes, self.slot(rank)
        parts = [
            (slot, rank * chunk),
            (slot + (rank + 1) * chunk, (self.world - rank - 1) * chunk),
            (self.result + rank * chunk, chunk),
            (0, self.head_bytes if rank == 0 else 0),
        ]
        return [part for part in parts if part[1]]

    @property
    def reserved_bytes(self) -> int:
        """How much memory it takes."""
        return sum(length for rank in range(self.world) for _, length in self.written_by(rank))


class Meeting:
    """Lets nobody go on before all have come, and shows each what the others wrote before they came.

    One semaphore for every ordered pair of ranks. POSIX makes their functions synchronise memory
    (IEEE 1003.1, 4.12), on every architecture; flags of our own would be plain loads and stores, whose
    order only x86 keeps.
    """

    def __init__(self, memory: mmap.mmap, group: Group) -> None:
        self._libc = ctypes.CDLL(None)  # not PyDLL: whoever sleeps in there must let other threads run
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
                # Shared between processes, and not come yet.
                self._libc.sem_init(semaphore, ctypes.c_int(1), ctypes.c_uint(0))
        group.barrier()

    def meet(self) -> None:
        """Return when every rank has called it as often as this one."""
        for semaphore in self._to:
            self._libc.sem_post(semaphore)
        for semaphore in self._from:
            self._await(semaphore)

    def _await(self, semaphore: ctypes.c_void_p) -> None:
        """Look for it at first, leaving the core to whoever needs it; then sleep until it comes.

        There is no limit but the rank's watchdog. Where ranks have to share cores it matters to be woken:
        three ranks on two cores took 15 % longer with naps of 100 microseconds in its place.
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
        """Return a time to come on the system's clock, the one that semaphores go by."""
        return cls(*divmod(time.time_ns() + int(seconds * 1e9), 1_000_000_000))


def _mean(result: torch.Tensor, summands: list[torch.Tensor]) -> None:
    count = len(summands)
    if count == 1:
        result.copy_(summands[0])
        return
    torch.add(summands[0], summands[1], out=result)
    for summand in summands[2:]:
        result.add_(summand)
    if count & (count - 1):
        result.div_(count)
    else:
        result.mul_(1 / count)  # the same to the last bit for powers of two, in half the time


def _cut(lengths: list[int], part: range) -> list[Piece]:
    """Name the pieces of parameters, laid end to end, that lie in a part of the whole."""
    pieces = []
    start = 0
    for index, length in enumerate(lengths):
        begin, end = max(start, part.start), min(start + length, part.stop)
        if begin < end:
            pieces.append(Piece(index, slice(begin - start, end - start), slice(begin, end)))
        start += length
    return pieces


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _common_dtype(parameters: list[nn.Parameter], group: Group) -> torch.dtype:
    if group.device.type != "cpu":
        raise BackendError(
            f"mode=shared_memory averages in host memory, but the gradients are on {group.device.type}: use "
            "mode=flat, or --device cpu"
        )
    dtypes = {p.dtype for p in parameters}
    if len(dtypes) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        raise BackendError(
            f"mode=shared_memory averages parameters of one dtype, but these have {names}: use "
            "mode=per_parameter"
        )
    return dtypes.pop()


# ------------------------------------------------------------------------------------------ set-up


class Trouble(IntEnum):
    """Why a rank cannot take part."""

    NONE = 0
    OTHER_HOST = 1
    NOT_OPENED = 2
    NO_ROOM = 3


def _share(group: Group, layout: Layout) -> tuple[mmap.mmap, str]:
    """Map one piece of memory in every rank, and return it with the name the kernel knows it by.

    It never has a name in a file system, so nothing can be left behind, however the ranks end; and it is
    not held to the size of /dev/shm, which in a container is 64 MB unless asked otherwise.
    """
    name = f"ringside-gradients-{secrets.token_hex(8)}"
    created = os.memfd_create(name) if group.rank == 0 else -1
    pid, descriptor, name, boot = _broadcast_words(
        group, str(os.getpid()), str(created), name, _boot_identity()
    )
    opened, trouble, reason = -1, Trouble.OTHER_HOST, ""
    try:
        if boot == _boot_identity():
            trouble = Trouble.NOT_OPENED
            opened = _open(f"/proc/{pid}/fd/{descriptor}", name)
            trouble = Trouble.NO_ROOM
            _reserve(opened, layout, group.rank)
            trouble = Trouble.NONE
    except OSError as error:
        reason = f" ({error.strerror})"
    try:
        _agree(group, trouble, layout, reason)  # after it nobody needs rank 0's descriptor any more
        return mmap.mmap(opened, layout.nbytes), name
    finally:
        for handle in {created, opened} - {-1}:
            os.close(handle)


def _open(path: str, name: str) -> int:
    """Open rank 0's memory by its descriptor; where process numbers mean others, the name will not fit."""
    if str(Path(path).readlink()) != f"/memfd:{name} (deleted)":
        raise FileNotFoundError(errno.ENOENT, "its process number means another process here")
    return os.open(path, os.O_RDWR)


def _reserve(descriptor: int, layout: Layout, rank: int) -> None:
    """Have memory now for all that this rank will write: later its lack would be a fatal signal."""
    os.ftruncate(descriptor, layout.nbytes)
    for offset, length in layout.written_by(rank):
        os.posix_fallocate(descriptor, offset, length)


def _agree(group: Group, trouble: Trouble, layout: Layout, reason: str) -> None:
    """Let every rank know of every rank's trouble, so that all stop for the same reason."""
    troubles = torch.zeros(group.world_size, dtype=torch.int64)
    troubles[group.rank] = trouble
    group.all_reduce_(troubles)
    found = troubles.tolist()
    for kind in (Trouble.OTHER_HOST, Trouble.NOT_OPENED, Trouble.NO_ROOM):
        ranks = [rank for rank, code in enumerate(found) if code == kind]
        if ranks:
            raise BackendError(_explain(kind, ranks, layout) + (reason if group.rank in ranks else ""))


def _explain(trouble: Trouble, ranks: list[int], layout: Layout) -> str:
    who = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    if trouble == Trouble.OTHER_HOST:
        return (
            f"mode=shared_memory averages in the memory of one host, but {who} and rank 0 are on different "
            "ones: put all ranks on one host, or use mode=flat"
        )
    if trouble == Trouble.NOT_OPENED:
        return (
            f"mode=shared_memory: {who} cannot open the memory of rank 0, though on the same host: run all "
            "ranks as one user and in one container, or use mode=flat"
        )
    return (
        f"mode=shared_memory needs {layout.reserved_bytes / 1e6:.1f} MB of memory on this host, and {who} "
        "could not reserve their part: free memory, raise the container's limit, or use mode=flat"
    )


def _boot_identity() -> str:
    """Return what is the same for all processes under one kernel, and under no other."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _broadcast_words(group: Group, *words: str) -> list[str]:
    text = torch.frombuffer(bytearray(" ".join(words).encode().ljust(OFFER_BYTES)), dtype=torch.uint8)
    group.broadcast_(text)
    return bytes(text.tolist()).decode().split()


def _mapped_bytes(name: str) -> int:
    """Say how much of a named memory this process has mapped."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if name in line:
            begin, _, end = line.split()[0].partition("-")
            total += int(end, 16) - int(begin, 16)
    return total

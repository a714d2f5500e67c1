"""Averaging in memory that all ranks of one host have mapped: what the machine itself could do.

Every rank reduces one part in N of the gradients, its chunk. In a step it

1. writes what it has of every other chunk, its share, into the shared memory,
2. meets the others, so that all shares are written,
3. adds up its own chunk in the place where the next rank's share lies, which makes that the result,
4. meets them again, so that all of the result is written, and takes views of it for gradients.

It is Rabenseifner's reduce-scatter and all-gather ("Optimization of Collective Reduction Operations",
ICCS 2004), but nothing is gathered: the result is read where it lies. Each chunk is reduced by one rank
and read by all, so the ranks are bitwise alike by construction.

For gradients of G bytes a rank moves (3 - 1/N) G: (N-1)/N read and as much written in 1, and as much read
in 3, with the own part read and written. Where everyone writes everything and reduces everything, one
meeting is saved, and (N + 3) G are moved. For N = 2 that is 5 G to 2.5 G, while to meet once more, right
after, takes one percent of the MLP's step at most.

**Nothing is written that is still to be read.** There are two results, in turns, and a plane for what
each further rank has to share. Nobody leaves a meeting before all have come to it.

- A result is read by optimizers from its step's second meeting on, and written to again from the next
  step's second meeting on. To that step's first one a rank comes only when its optimizer is done. What a
  rank itself writes into a result would reach the others, so that is looked for.
- The other planes are read between the two meetings of a step, and written to again after the second.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import secrets
import time
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from backends.base import BackendError

if TYPE_CHECKING:
    from torch import nn

    from backends.base import Facts, Group

RESULTS = 2
"""In turns, so that one may be written to while ranks still read the other."""
BLOCK_BYTES = 256 << 10
"""Of each summand, added at a time: small enough for what has been added up to stay in a core's cache."""
SEMAPHORE_BYTES = 64
"""A cache line for each, twice what a sem_t takes, so that ranks do not disturb each other's."""
OFFER_BYTES = 256
CHECKS_BEFORE_SLEEP = 500
"""A few hundred microseconds: waking up from sleep costs tens of them, and ranks are often less apart."""
_CLOSE_ON_EXEC = 1
"""MFD_CLOEXEC of linux/memfd.h."""
SLEEP_SECONDS = 0.1
"""After which a rank that was not woken looks around: signals are handled, and threads get their turn."""


class SharedSum:
    """The sum of gradients over the ranks of one host."""

    def __init__(self, parameters: list[nn.Parameter], group: Group) -> None:
        """Map the shared memory; every rank must call it, with parameters of the same shapes.

        Raises:
            BackendError: the ranks are not on CPUs of one host, memory is short, or dtypes are mixed.
        """
        dtype = _common_dtype(parameters, group)
        self.layout = Layout(group.world_size, sum(p.numel() for p in parameters), dtype.itemsize)
        self._rank = group.rank
        self._memory, self._name = _share(group, self.layout)
        self._meeting = Meeting(self._memory, group)
        self._block = BLOCK_BYTES // dtype.itemsize * torch.get_num_threads()
        # Where nothing is added to twice, blocks would save nothing.
        blocks = [self._block] if self.layout.planes > RESULTS else []
        self._cuts = _cut([p.numel() for p in parameters], [self.layout.chunk_elements, *blocks])
        planes = [self._tensor(self.layout.plane(index), dtype) for index in range(self.layout.planes)]
        self._turns = [self._turn(result, planes[RESULTS:], parameters) for result in planes[:RESULTS]]

    @property
    def views(self) -> list[torch.Tensor]:
        """What ``reduce`` filled when it was called last, one tensor a parameter."""
        return self._turns[0].views

    def reduce(self, gradients: list[torch.Tensor]) -> None:
        """Fill ``views`` with the sum of all ranks' gradients. They hold until the next call.

        Raises:
            BackendError: something was written into ``views`` since the last call.
        """
        self._require_untouched()
        self._turns.reverse()
        turn = self._turns[0]
        pieces = self._pieces_of(gradients)
        if turn.exported:  # not by a rank that reduces all there is
            torch._foreach_copy_(turn.places, [pieces[index] for index in turn.exported])
        self._meeting.meet()
        for batch in turn.reduced:
            torch._foreach_add_(batch.results, pieces[batch.pieces])
            for shares in batch.others:
                torch._foreach_add_(batch.results, shares)
        self._meeting.meet()
        turn.version = turn.result._version  # noqa: SLF001 -- the counter that autograd itself goes by

    @property
    def nbytes(self) -> int:
        """Bytes of gradients that are averaged in a step."""
        return self.layout.elements * self.layout.element_size

    def attest(self) -> Facts:
        """Say through what gradients travel, as the kernel's table of this process's mappings has it."""
        mapped = _mapped_bytes(self._name)
        transport = "shared memory" if mapped else "none"
        return {
            "transport": "none (one rank)" if self.layout.world == 1 else transport,
            "shared_bytes": mapped,
        }

    def _tensor(self, offset: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.frombuffer(self._memory, dtype=dtype, count=self.layout.elements, offset=offset)

    def _pieces_of(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        pieces = []
        for gradient, lengths in zip(gradients, self._cuts, strict=True):
            if len(lengths) == 1:
                pieces.append(gradient)  # as it is: every call of torch's takes microseconds
            else:
                # Not Tensor.split, which takes 15 us more: it is written in Python.
                pieces.extend(torch.split_with_sizes(gradient.reshape(-1), lengths))
        return pieces

    def _turn(
        self, result: torch.Tensor, others: list[torch.Tensor], parameters: list[nn.Parameter]
    ) -> _Turn:
        """Find the place of every piece in one of the results and in the planes of the others' shares."""
        places = [self._pieces_of(_views(plane, parameters)) for plane in (result, *others)]
        turn = _Turn(result, _views(result, parameters))
        start = 0
        for index, place in enumerate(places[0]):
            plane = self.layout.plane_for(self._rank, start)
            if plane is None:
                turn.reduce(index, [own[index] for own in places], self._block)
            else:
                turn.exported.append(index)
                turn.places.append(places[plane][index])
            start += place.numel()
        return turn

    def _require_untouched(self) -> None:
        if any(turn.result._version != turn.version for turn in self._turns):  # noqa: SLF001
            raise BackendError(
                "averaged gradients were written to: with mode=shared_memory all ranks read the same ones, "
                "so whatever adds to them, clips them or zeroes them in place does it to every rank's; use "
                "mode=flat, or keep to zero_grad(set_to_none=True) and leave them alone"
            )


@dataclass(slots=True)
class _Batch:
    """Pieces that are added up together, a block at most, or a single piece."""

    pieces: slice
    results: list[torch.Tensor]
    others: list[list[torch.Tensor]]
    """Beside each result the further shares: a list for every rank that has some."""


@dataclass(slots=True)
class _Turn:
    """Where a step adds up: every second one in the same place."""

    result: torch.Tensor
    views: list[torch.Tensor]
    exported: list[int] = field(default_factory=list)
    """Pieces that other ranks reduce, by index."""
    places: list[torch.Tensor] = field(default_factory=list)
    """Where this rank's share of them goes."""
    reduced: list[_Batch] = field(default_factory=list)
    """What this rank reduces."""
    version: int = 0

    def reduce(self, index: int, places: list[torch.Tensor], block: int) -> None:
        """Add a piece that this rank reduces, with the places of the result and of the further shares."""
        last = self.reduced[-1] if self.reduced else None
        if last and sum(map(torch.numel, last.results)) + places[0].numel() <= block:
            last.pieces = slice(last.pieces.start, index + 1)
            for joined, place in zip([last.results, *last.others], places, strict=True):
                joined.append(place)
        else:
            result, *others = [[place] for place in places]
            self.reduced.append(_Batch(slice(index, index + 1), result, others))


@dataclass(frozen=True, slots=True)
class Layout:
    """Where what lies in the shared memory: semaphores, the results, planes of further shares.

    A plane is as long as the gradients, in chunks of whole pages. So no cache line has two writers at a
    time, and every rank can reserve what it reduces by itself, which puts that into the memory next to it
    where there are several.
    """

    world: int
    elements: int
    element_size: int

    @property
    def chunk_bytes(self) -> int:
        """Size of what one rank reduces; for the last ones there may be less, or nothing."""
        return _round_up(-(-self.elements * self.element_size // self.world), mmap.PAGESIZE)

    @property
    def chunk_elements(self) -> int:
        """The same in elements."""
        return self.chunk_bytes // self.element_size

    @property
    def head_bytes(self) -> int:
        """Size of the semaphores' part."""
        return _round_up(SEMAPHORE_BYTES * self.world**2, mmap.PAGESIZE)

    @property
    def planes(self) -> int:
        """Results, and one plane for each rank but the one that reduces and the next."""
        return RESULTS + max(self.world - 2, 0)

    @property
    def nbytes(self) -> int:
        """Size of it all."""
        return self.plane(self.planes)

    def plane(self, index: int) -> int:
        """Where a plane begins."""
        return self.head_bytes + index * self.world * self.chunk_bytes

    def plane_for(self, rank: int, element: int) -> int | None:
        """Say where a rank's share of an element goes: 0 is the result, then the planes of further shares.

        The rank after the one that reduces it comes first. What a rank reduces itself goes nowhere, unless
        it is alone, and its share is the result.
        """
        owner = min(element // self.chunk_elements, self.world - 1)  # the last one's, what has no elements
        distance = (rank - owner - 1) % self.world
        return distance if distance < max(self.world - 1, 1) else None

    def chunk_of(self, rank: int) -> range:
        """Return the elements that a rank reduces."""
        size = self.chunk_elements
        return range(min(self.elements, rank * size), min(self.elements, (rank + 1) * size))

    def reserved_by(self, rank: int) -> list[tuple[int, int]]:
        """List offset and length of what a rank makes sure of: its chunk in every plane."""
        parts = [
            (self.plane(index) + rank * self.chunk_bytes, self.chunk_bytes) for index in range(self.planes)
        ]
        return [(0, self.head_bytes), *parts] if rank == 0 else parts


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


def _views(plane: torch.Tensor, parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    parts = plane.split([p.numel() for p in parameters])
    return [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]


def _cut(lengths: list[int], strides: list[int]) -> list[list[int]]:
    """Cut parameters, laid end to end, at every multiple of a stride: the lengths of each one's pieces."""
    cuts = []
    start = 0
    for length in lengths:
        stop = start + length
        inner = {at for stride in strides for at in range(_round_up(start + 1, stride), stop, stride)}
        cuts.append([end - begin for begin, end in pairwise([start, *sorted(inner), stop])])
        start = stop
    return cuts


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
    created, opened, trouble, reason = -1, -1, Trouble.OTHER_HOST, ""
    if group.rank == 0:
        try:
            created = _create(name)
        except OSError as error:
            reason = f" ({error.strerror})"
    pid, descriptor, name, boot = _broadcast_words(
        group, str(os.getpid()), str(created), name, _boot_identity()
    )
    try:
        if boot == _boot_identity():
            trouble = Trouble.NOT_OPENED
            opened = _open(f"/proc/{pid}/fd/{descriptor}", name)
            trouble = Trouble.NO_ROOM
            _reserve(opened, layout, group.rank)
            trouble = Trouble.NONE
    except OSError as error:
        reason = reason or f" ({error.strerror})"
    try:
        _agree(group, trouble, layout, reason)  # after it nobody needs rank 0's descriptor any more
        return mmap.mmap(opened, layout.nbytes), name
    finally:
        for handle in {created, opened} - {-1}:
            os.close(handle)


def problem_here() -> str:
    """Say why ranks cannot share memory on this machine; empty where nothing speaks against it."""
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


def _create(name: str) -> int:
    """Make memory that is in no file system: by libc, for Pythons built on an old one lack the function."""
    try:
        create = ctypes.CDLL(None, use_errno=True).memfd_create
    except AttributeError:
        raise OSError(errno.ENOSYS, "the C library has no memfd_create") from None
    descriptor = int(create(name.encode(), ctypes.c_uint(_CLOSE_ON_EXEC)))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


def _open(path: str, name: str) -> int:
    """Open rank 0's memory by its descriptor; where process numbers mean others, the name will not fit."""
    if str(Path(path).readlink()) != f"/memfd:{name} (deleted)":
        raise FileNotFoundError(errno.ENOENT, "its process number means another process here")
    return os.open(path, os.O_RDWR)


def _reserve(descriptor: int, layout: Layout, rank: int) -> None:
    """Have memory now for all that this rank will reduce: later its lack would be a fatal signal."""
    os.ftruncate(descriptor, layout.nbytes)
    for offset, length in layout.reserved_by(rank):
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
        f"mode=shared_memory needs {layout.nbytes / 1e6:.1f} MB of memory on this host, and {who} "
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

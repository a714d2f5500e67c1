"""Sum gradients in memory that all ranks of one host map.

This shows how fast the machine itself could sum them. Each of N ranks reduces 1/N of the gradients, its
chunk. In a step each rank

1. writes its gradients of every other chunk, its shares, into the shared memory,
2. waits for the others, so that all shares are written,
3. adds up its own chunk in the place of the next rank's share, which becomes the result,
4. waits again, so that the whole result is written, and takes views of it as gradients.

This is Rabenseifner's reduce-scatter and all-gather ("Optimization of Collective Reduction Operations",
ICCS 2004). There is no gather: ranks read the result in place. One rank reduces each chunk and all ranks
read it, so the gradients are bitwise equal on all ranks by construction.

For gradients of G bytes a rank moves (3 - 1/N) G bytes. In item 1 it reads (N-1)/N G and writes as much. In
item 3 it reads as much again, and reads and writes its own chunk. If every rank reduced everything, one wait
would be saved, but each would move (N + 3) G. For N = 2 that is 5 G instead of 2.5 G. All ranks reach the
second wait at almost the same time, so it takes at most one percent of a step of the MLP.

**No rank writes what another still has to read.** There are two results, used in turns, and one plane for
each further share. No rank leaves a wait before all have arrived.

- Optimizers read a result after the second wait of its step. The result is written again only after the
  second wait of the next step. No rank reaches the next step's waits before its optimizer is done. A rank
  that writes into a result would change it for all ranks, so ``reduce`` raises an error on that rank.
- Ranks read the other planes between the two waits of a step, and write them again after the second wait.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import nn

from backends.base import BackendError, Facts, Group
from backends.shared_memory.memory import SEMAPHORE_BYTES, Barrier, mapped_bytes, share

RESULTS = 2
"""Number of planes for results; one is written while ranks still read the other."""
BLOCK_BYTES = 256 << 10
"""Bytes that each thread adds at a time, so that the sums stay in its cache."""


class SharedSum:
    """The sum of gradients over the ranks of one host."""

    def __init__(self, parameters: list[nn.Parameter], group: Group) -> None:
        """Map the shared memory. Collective: all ranks pass parameters of equal shapes.

        Raises:
            BackendError: the ranks are not on CPUs of one host, memory is short, or dtypes are mixed.
        """
        dtype = _common_dtype(parameters, group)
        self.layout = Layout(group.world_size, sum(p.numel() for p in parameters), dtype.itemsize)
        self._rank = group.rank
        reserved = self.layout.reserved_by(group.rank)
        self._memory, self._name = share(group, self.layout.nbytes, reserved)
        self._meeting = Barrier(self._memory, group)
        self._block = BLOCK_BYTES // dtype.itemsize * torch.get_num_threads()
        # Blocks save nothing if each element is added to once.
        blocks = [self._block] if self.layout.planes > RESULTS else []
        self._cuts = cut([p.numel() for p in parameters], [self.layout.chunk_elements, *blocks])
        planes = [
            torch.frombuffer(self._memory, dtype=dtype, count=self.layout.elements, offset=offset)
            for offset in map(self.layout.plane_offset, range(self.layout.planes))
        ]
        self._turns = [self._turn(result, planes[RESULTS:], parameters) for result in planes[:RESULTS]]

    @property
    def views(self) -> list[torch.Tensor]:
        """The sums of the last ``reduce``: one tensor per parameter, in the shared memory."""
        return self._turns[0].views

    def reduce(self, gradients: list[torch.Tensor]) -> None:
        """Fill ``views`` with the sums of all ranks' gradients. Collective.

        The views hold these sums until the next call, and must not be written to.

        Raises:
            BackendError: this rank wrote to the views of an earlier call.
        """
        self._require_untouched()
        self._turns.reverse()
        turn = self._turns[0]
        pieces = self._pieces_of(gradients)
        if turn.exported:  # a rank that reduces everything exports nothing
            torch._foreach_copy_(turn.places, [pieces[index] for index in turn.exported])
        self._meeting.meet()
        for batch in turn.reduced:
            torch._foreach_add_(batch.results, pieces[batch.pieces])
            for shares in batch.others:
                torch._foreach_add_(batch.results, shares)
        self._meeting.meet()
        turn.version = turn.result._version  # noqa: SLF001 -- the counter that autograd uses

    @property
    def nbytes(self) -> int:
        """Bytes of gradients that are summed in a step."""
        return self.layout.elements * self.layout.element_size

    def attest(self) -> Facts:
        """Return the transport, and the bytes of shared memory in this process's memory map."""
        mapped = mapped_bytes(self._name)
        transport = "shared memory" if mapped else "none"
        return {
            "transport": "none (one rank)" if self.layout.world == 1 else transport,
            "shared_bytes": mapped,
        }

    def _pieces_of(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        pieces = []
        for gradient, lengths in zip(gradients, self._cuts, strict=True):
            if len(lengths) == 1:
                pieces.append(gradient)  # without a call, because every torch call takes microseconds
            else:
                # Tensor.split is written in Python and takes 15 us more.
                pieces.extend(torch.split_with_sizes(gradient.reshape(-1), lengths))
        return pieces

    def _turn(
        self, result: torch.Tensor, others: list[torch.Tensor], parameters: list[nn.Parameter]
    ) -> _Turn:
        """Return a result with the places of all pieces in it and in the other planes."""
        places = [self._pieces_of(_views(plane, parameters)) for plane in (result, *others)]
        turn = _Turn(result, _views(result, parameters))
        start = 0
        for index, place in enumerate(places[0]):
            plane = self.layout.place_of_share(self._rank, start)
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
                "averaged gradients were written to. With mode=shared_memory all ranks read the same "
                "gradients, so adding, clipping or zeroing in place changes every rank's. Use mode=flat, or "
                "change them only with zero_grad(set_to_none=True)."
            )


@dataclass(slots=True)
class _Batch:
    """Successive pieces that are added in one call: at most a block in all, or one larger piece."""

    pieces: slice
    results: list[torch.Tensor]
    others: list[list[torch.Tensor]]
    """The further shares: one list for each plane, in the order of ``results``."""


@dataclass(slots=True)
class _Turn:
    """One of the two results, which every second step uses, and the places of all pieces then."""

    result: torch.Tensor
    views: list[torch.Tensor]
    exported: list[int] = field(default_factory=list)
    """Indices of pieces that other ranks reduce."""
    places: list[torch.Tensor] = field(default_factory=list)
    """The places for this rank's shares of the exported pieces, in the same order."""
    reduced: list[_Batch] = field(default_factory=list)
    """The pieces that this rank reduces, in batches."""
    version: int = 0

    def reduce(self, index: int, places: list[torch.Tensor], block: int) -> None:
        """Add a piece that this rank reduces to the last batch, or to a new one beyond ``block`` elements."""
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
    """The shared memory: a head with semaphores, planes for results, and planes for further shares.

    A plane has room for all gradients, in one chunk of whole pages per rank. So no cache line has two writers
    at a time. Each rank reserves the memory of its own chunk. On a machine with several memory nodes, that
    memory is then near the rank.
    """

    world: int
    elements: int
    element_size: int

    @property
    def chunk_bytes(self) -> int:
        """Size in bytes of a rank's chunk; gradients may not fill the last chunks."""
        return _round_up(-(-self.elements * self.element_size // self.world), mmap.PAGESIZE)

    @property
    def chunk_elements(self) -> int:
        """Number of elements in a rank's chunk."""
        return self.chunk_bytes // self.element_size

    @property
    def head_bytes(self) -> int:
        """Size in bytes of the head, which has the semaphores."""
        return _round_up(SEMAPHORE_BYTES * self.world**2, mmap.PAGESIZE)

    @property
    def planes(self) -> int:
        """Number of planes: those for results, and one for each further share of a chunk.

        Two shares of a chunk need no plane of their own. The rank that reduces the chunk reads its share from
        its gradients, and the next rank writes its share into the result.
        """
        return RESULTS + max(self.world - 2, 0)

    @property
    def nbytes(self) -> int:
        """Size in bytes of the whole shared memory."""
        return self.plane_offset(self.planes)

    def plane_offset(self, index: int) -> int:
        """Return the offset of a plane in bytes."""
        return self.head_bytes + index * self.world * self.chunk_bytes

    def place_of_share(self, rank: int, element: int) -> int | None:
        """Return where a rank's share of an element goes; None if the rank reduces the element.

        0 is the step's result, and larger numbers count the planes for further shares from 1. The result
        takes the share of the rank after the one that reduces the element. A single rank writes its
        share into the result.
        """
        owner = min(element // self.chunk_elements, self.world - 1)  # an empty end belongs to the last rank
        distance = (rank - owner - 1) % self.world
        return distance if distance < max(self.world - 1, 1) else None

    def reserved_by(self, rank: int) -> list[tuple[int, int]]:
        """Return offset and length in bytes of a rank's chunk in every plane, and of rank 0's head."""
        parts = [
            (self.plane_offset(index) + rank * self.chunk_bytes, self.chunk_bytes)
            for index in range(self.planes)
        ]
        return [(0, self.head_bytes), *parts] if rank == 0 else parts


def cut(lengths: list[int], strides: list[int]) -> list[list[int]]:
    """Cut parameters of these lengths, laid end to end, at every multiple of each stride.

    Returns:
        For each parameter the lengths of its pieces, in elements.
    """
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


def _views(plane: torch.Tensor, parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    parts = plane.split([p.numel() for p in parameters])
    return [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]


def _common_dtype(parameters: list[nn.Parameter], group: Group) -> torch.dtype:
    if group.device.type != "cpu":
        raise BackendError(
            f"mode=shared_memory averages in host memory, but the gradients are on {group.device.type}. "
            "Use mode=flat, or --device cpu."
        )
    dtypes = {p.dtype for p in parameters}
    if len(dtypes) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        raise BackendError(
            f"mode=shared_memory averages gradients of one dtype, but the parameters have {names}. "
            "Use mode=flat."
        )
    return dtypes.pop()

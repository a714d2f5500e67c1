"""Sum gradients in memory that all ranks of one host map.

This shows how fast the machine itself could sum them. The gradients are cut into one chunk for each of N
ranks, which that rank sums. In a step each rank

1. writes its gradients for the chunks of all other ranks, called its shares, into the shared memory,
2. waits for the other ranks, so that all shares are written,
3. sums its own chunk in the memory that holds the next rank's share, which becomes the result,
4. waits again, so that the whole result is written, and takes views of it as gradients.

This is Rabenseifner's reduce-scatter and all-gather ("Optimization of Collective Reduction Operations",
ICCS 2004), but nothing is gathered, because ranks read the result in place. Each chunk is summed by one rank
and read by all, so the gradients are bitwise equal on all ranks.

For gradients of G bytes a rank moves (3 - 1/N) G bytes. In item 1 it reads (N-1)/N G and writes as much. In
item 3 it reads as much again, and reads and writes its own chunk. If every rank reduced everything, one wait
would be saved, but each would move (N + 3) G. For N = 2 that is 5 G instead of 2.5 G. All ranks reach the
second wait at almost the same time, so it takes at most one percent of a step of the MLP.

**No rank writes what another still has to read.** The memory has several planes, each as large as all
gradients. Two planes take the result in alternate steps, and the others take further shares. No rank leaves
a wait before all have arrived.

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
from backends.shared_memory.memory import SEMAPHORE_BYTES, Barrier, map_together, mapped_bytes

RESULTS = 2
"""Number of planes for results: one is written while ranks still read the other."""
BLOCK_BYTES = 256 << 10
"""Number of bytes that each thread adds at a time, so that the sums stay in its cache."""


class SharedSum:
    """The sum of gradients over the ranks of one host."""

    def __init__(self, parameters: list[nn.Parameter], group: Group) -> None:
        """Map the shared memory; every rank must call this with parameters of the same shapes.

        Raises:
            BackendError: the ranks are not on CPUs of one host, memory is short, or dtypes are mixed.
        """
        dtype = _common_dtype(parameters, group)
        self.layout = Layout(group.world_size, sum(p.numel() for p in parameters), dtype.itemsize)
        self._rank = group.rank
        reserved = self.layout.reserved_by(group.rank)
        self._memory, self._name = map_together(group, self.layout.nbytes, reserved)
        self._barrier = Barrier(self._memory, group)
        self._block = BLOCK_BYTES // dtype.itemsize * torch.get_num_threads()
        # Blocks save nothing if each element is added to once.
        blocks = [self._block] if self.layout.planes > RESULTS else []
        lengths = [p.numel() for p in parameters]
        self._piece_lengths = cut_at_multiples(lengths, [self.layout.chunk_elements, *blocks])
        planes = [
            torch.frombuffer(self._memory, dtype=dtype, count=self.layout.elements, offset=offset)
            for offset in map(self.layout.plane_offset, range(self.layout.planes))
        ]
        self._results = [self._plan(result, planes[RESULTS:], parameters) for result in planes[:RESULTS]]

    @property
    def views(self) -> list[torch.Tensor]:
        """The sums of the last ``reduce``: one tensor per parameter, in the shared memory."""
        return self._results[0].views

    def reduce(self, gradients: list[torch.Tensor]) -> None:
        """Fill ``views`` with the sums of all ranks' gradients; every rank must call this.

        ``gradients`` has a tensor for each parameter. The views hold the sums until the next call, and must
        not be written to.

        Raises:
            BackendError: this rank wrote to the views of an earlier call.
        """
        self._require_unwritten_views()
        self._results.reverse()
        result = self._results[0]
        pieces = self._pieces_of(gradients)
        if result.exported:  # a rank that reduces everything exports nothing
            torch._foreach_copy_(result.destinations, [pieces[index] for index in result.exported])
        self._barrier.wait()
        for batch in result.reduced:
            torch._foreach_add_(batch.results, pieces[batch.pieces])
            for shares in batch.further_shares:
                torch._foreach_add_(batch.results, shares)
        self._barrier.wait()
        result.version = result.plane._version  # noqa: SLF001 -- the counter that autograd uses

    @property
    def nbytes(self) -> int:
        """Number of bytes of a rank's gradients in a step."""
        return self.layout.elements * self.layout.element_size

    @property
    def reserved_bytes(self) -> int:
        """Number of bytes of the shared memory that this rank reserves; all ranks together reserve all."""
        return sum(length for _, length in self.layout.reserved_by(self._rank))

    def attest(self) -> Facts:
        """Return the transport, and how many bytes of the shared memory this process has mapped."""
        mapped = mapped_bytes(self._name)
        transport = "shared memory" if mapped else "none"
        return {
            "transport": "none (one rank)" if self.layout.world == 1 else transport,
            "shared_bytes": mapped,
        }

    def _pieces_of(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the pieces into which the tensors of all parameters are cut, in order and flat if cut."""
        pieces = []
        for gradient, lengths in zip(gradients, self._piece_lengths, strict=True):
            if len(lengths) == 1:
                pieces.append(gradient)  # without a call, because every torch call takes microseconds
            else:
                # Tensor.split is written in Python and takes 15 us more.
                pieces.extend(torch.split_with_sizes(gradient.reshape(-1), lengths))
        return pieces

    def _plan(
        self, plane: torch.Tensor, share_planes: list[torch.Tensor], parameters: list[nn.Parameter]
    ) -> _Result:
        """Return a result in ``plane``, with the views of all pieces that this rank writes or adds up."""
        pieces = [self._pieces_of(_views(each, parameters)) for each in (plane, *share_planes)]
        result = _Result(plane, _views(plane, parameters))
        start = 0
        for index, piece in enumerate(pieces[0]):
            number = self.layout.plane_of_share(self._rank, start)
            if number is None:
                result.add_reduced(index, [of_plane[index] for of_plane in pieces], self._block)
            else:
                result.exported.append(index)
                result.destinations.append(pieces[number][index])
            start += piece.numel()
        return result

    def _require_unwritten_views(self) -> None:
        if any(result.plane._version != result.version for result in self._results):  # noqa: SLF001
            raise BackendError(
                "averaged gradients were written to. With mode=shared_memory all ranks read the same "
                "gradients, so adding, clipping or zeroing in place changes every rank's. Use mode=flat, or "
                "change them only with zero_grad(set_to_none=True)."
            )


@dataclass(slots=True)
class _Batch:
    """Successive pieces that are added up in one call: at most a block in all, or one larger piece."""

    pieces: slice
    """The indices of the pieces among this rank's own."""
    results: list[torch.Tensor]
    """The views of the pieces in the plane of the result."""
    further_shares: list[list[torch.Tensor]]
    """The views of the pieces in each plane for further shares, in the order of ``results``."""


@dataclass(slots=True)
class _Result:
    """One of the two results, which every second step uses, and what this rank does for it."""

    plane: torch.Tensor
    """The memory of the result, which is flat."""
    views: list[torch.Tensor]
    """The parts of the plane in the shapes of the parameters."""
    exported: list[int] = field(default_factory=list)
    """Indices of the pieces that other ranks reduce."""
    destinations: list[torch.Tensor] = field(default_factory=list)
    """The memory into which this rank writes its shares of the exported pieces, in the same order."""
    reduced: list[_Batch] = field(default_factory=list)
    """The pieces that this rank reduces, in batches."""
    version: int = 0
    """The plane's version after the last sum; autograd raises it when this rank writes to a view."""

    def add_reduced(self, index: int, views: list[torch.Tensor], block: int) -> None:
        """Add a piece that this rank reduces to the last batch, or to a new one beyond ``block`` elements.

        ``views`` are those of the piece in the result's plane and in each plane for further shares.
        """
        last = self.reduced[-1] if self.reduced else None
        if last and sum(map(torch.numel, last.results)) + views[0].numel() <= block:
            last.pieces = slice(last.pieces.start, index + 1)
            for of_plane, view in zip([last.results, *last.further_shares], views, strict=True):
                of_plane.append(view)
        else:
            results, *further_shares = [[view] for view in views]
            self.reduced.append(_Batch(slice(index, index + 1), results, further_shares))


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of the shared memory: a head with semaphores, then the planes.

    Each plane is as large as all gradients, and has one chunk of whole pages for each rank. So no cache line
    has two writers at a time. Each rank reserves the memory of its own chunks, which is then near the rank on
    a machine with several memory nodes.
    """

    world: int
    """Number of ranks."""
    elements: int
    """Number of elements of all gradients of a rank."""
    element_size: int
    """Size of an element in bytes."""

    @property
    def chunk_bytes(self) -> int:
        """Size in bytes of a rank's chunk in a plane; the gradients may end before the last chunks do."""
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
        """Number of planes: those for results, and one for each rank beyond the second.

        The shares of two ranks need no plane of their own. The rank that reduces a chunk reads its share from
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

    def plane_of_share(self, rank: int, element: int) -> int | None:
        """Return which plane takes a rank's share of an element; None if the rank reduces the element.

        0 is the plane of the step's result, and 1 is the first plane for further shares. The result takes the
        share of the rank after the one that reduces the element. A single rank writes its share into the
        result.
        """
        owner = min(element // self.chunk_elements, self.world - 1)  # an empty end belongs to the last rank
        distance = (rank - owner - 1) % self.world
        return distance if distance < max(self.world - 1, 1) else None

    def reserved_by(self, rank: int) -> list[tuple[int, int]]:
        """Return the offsets and lengths in bytes of the memory that a rank reserves.

        It is the rank's chunk in every plane, and for rank 0 also the head.
        """
        parts = [
            (self.plane_offset(index) + rank * self.chunk_bytes, self.chunk_bytes)
            for index in range(self.planes)
        ]
        return [(0, self.head_bytes), *parts] if rank == 0 else parts


def cut_at_multiples(lengths: list[int], strides: list[int]) -> list[list[int]]:
    """Cut parameters that are laid end to end at every multiple of each stride, and return the pieces.

    ``lengths`` are those of the parameters. Each parameter gets the list of the lengths of its pieces. All
    lengths and strides are numbers of elements.
    """
    pieces = []
    start = 0
    for length in lengths:
        stop = start + length
        inner = {at for stride in strides for at in range(_round_up(start + 1, stride), stop, stride)}
        pieces.append([end - begin for begin, end in pairwise([start, *sorted(inner), stop])])
        start = stop
    return pieces


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _views(plane: torch.Tensor, parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    """Return the views of a flat plane in the shapes of the parameters."""
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

"""Compute where semaphores, results and shares are in the shared memory."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from itertools import pairwise

RESULTS = 2
"""Number of planes for results; one is written while ranks still read the other."""
SEMAPHORE_BYTES = 64
"""Size of a cache line; each semaphore has one, so that writers do not collide."""


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
        return self.plane(self.planes)

    def plane(self, index: int) -> int:
        """Return the offset of a plane in bytes."""
        return self.head_bytes + index * self.world * self.chunk_bytes

    def plane_for(self, rank: int, element: int) -> int | None:
        """Return the plane for a rank's share of an element; None if the rank reduces the element.

        Counting starts with the step's result as 0, and goes on with the planes for further shares. The
        result takes the share of the rank after the one that reduces the element. A single rank writes its
        share into the result.
        """
        owner = min(element // self.chunk_elements, self.world - 1)  # an empty end belongs to the last rank
        distance = (rank - owner - 1) % self.world
        return distance if distance < max(self.world - 1, 1) else None

    def reserved_by(self, rank: int) -> list[tuple[int, int]]:
        """Return offset and length in bytes of a rank's chunk in every plane, and of rank 0's head."""
        parts = [
            (self.plane(index) + rank * self.chunk_bytes, self.chunk_bytes) for index in range(self.planes)
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

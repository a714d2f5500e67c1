"""Place semaphores, results and shares in the shared memory."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from itertools import pairwise

RESULTS = 2
"""Number of results: one is written while ranks still read the other."""
SEMAPHORE_BYTES = 64
"""One cache line for each semaphore, so that writers do not collide."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The shared memory: semaphores, the results, and planes for further shares.

    A plane is as long as the gradients, in chunks of whole pages. So no cache line has two writers at a
    time. A rank also reserves the memory of its own chunk. On a machine with several memory nodes, that
    memory is then near the rank.
    """

    world: int
    elements: int
    element_size: int

    @property
    def chunk_bytes(self) -> int:
        """Size of a rank's chunk; the last chunk may be smaller."""
        return _round_up(-(-self.elements * self.element_size // self.world), mmap.PAGESIZE)

    @property
    def chunk_elements(self) -> int:
        """The same in elements."""
        return self.chunk_bytes // self.element_size

    @property
    def head_bytes(self) -> int:
        """Size of the part with the semaphores."""
        return _round_up(SEMAPHORE_BYTES * self.world**2, mmap.PAGESIZE)

    @property
    def planes(self) -> int:
        """Number of planes: the results, and the further shares of a chunk.

        The rank that reduces a chunk needs no plane. The next rank's share is written into the result.
        """
        return RESULTS + max(self.world - 2, 0)

    @property
    def nbytes(self) -> int:
        """Size of the whole memory."""
        return self.plane(self.planes)

    def plane(self, index: int) -> int:
        """Return the offset of a plane."""
        return self.head_bytes + index * self.world * self.chunk_bytes

    def plane_for(self, rank: int, element: int) -> int | None:
        """Return the plane for a rank's share of an element.

        Plane 0 is the result. The rank after the one that reduces the element comes first. A rank that
        reduces it needs no plane, unless it is alone. Then its share is the result.
        """
        owner = min(element // self.chunk_elements, self.world - 1)  # an empty end belongs to the last rank
        distance = (rank - owner - 1) % self.world
        return distance if distance < max(self.world - 1, 1) else None

    def reserved_by(self, rank: int) -> list[tuple[int, int]]:
        """List offset and length of a rank's chunk in every plane."""
        parts = [
            (self.plane(index) + rank * self.chunk_bytes, self.chunk_bytes) for index in range(self.planes)
        ]
        return [(0, self.head_bytes), *parts] if rank == 0 else parts


def cut(lengths: list[int], strides: list[int]) -> list[list[int]]:
    """Cut parameters, laid end to end, at every multiple of a stride.

    Returns:
        For each parameter the lengths of its pieces.
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

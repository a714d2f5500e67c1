"""Make the data with which a collective's result is checked; the right result is exact in every dtype.

The data are whole numbers that repeat after a prime number of elements. They depend on rank and index, so a
missing rank, a shifted part or a part of another rank makes the result wrong.
"""

from __future__ import annotations

import torch

from compare.schema.collectives import Exchange

_PERIOD = 251
"""Number of elements after which the data repeats; a prime, so that a shifted part is wrong."""
_VALUES = 61
"""Number of different values in the data, at most."""
_EXACT = {"float16": 1 << 11, "bfloat16": 1 << 8, "float8_e4m3fn": 1 << 4, "float8_e5m2": 1 << 3}
"""For each dtype, the number up to which it holds every whole number exactly."""
_EXACT |= {"int8": (1 << 7) - 1, "uint8": (1 << 8) - 1}
_EXACT_OF_OTHERS = 1 << 24
_FACTORS_APART = 5
"""For a product, each rank has a factor other than 1 in about every fifth element, or more rarely."""


class Pattern:
    """The data that every rank passes to one collective, and the right results."""

    def __init__(self, exchange: Exchange, ranks: int) -> None:
        self._exchange = exchange
        self._ranks = ranks
        self._exact = _EXACT.get(exchange.dtype, _EXACT_OF_OTHERS)

    def data_of(self, rank: int, buffer: torch.Tensor) -> torch.Tensor:
        """Return the data that a rank passes, in a new tensor with the size and dtype of its ``buffer``."""
        return _repeated(self._period(rank), buffer, 0)

    def right_result(self, rank: int, buffer: torch.Tensor) -> torch.Tensor:
        """Return what a rank must hold afterwards, with as many bytes as ``buffer``, which holds its result.

        A result that is joined from several ranks' parts is returned as raw bytes (uint8), because torch
        cannot join every dtype.
        """
        name, ranks = self._exchange.collective, range(self._ranks)
        if self._exchange.traits.reduces:
            skipped = rank * buffer.numel() if name == "reduce_scatter" else 0
            return _repeated(self._reduced(), buffer, skipped)
        if name == "broadcast":
            return _repeated(self._period(0), buffer, 0)
        if name == "send_recv":
            return _repeated(self._period((rank - 1) % self._ranks), buffer, 0)
        part = buffer[: buffer.numel() // self._ranks]
        skipped = rank * part.numel() if name == "all_to_all" else 0
        return torch.cat([_repeated(self._period(other), part, skipped).view(torch.uint8) for other in ranks])

    def count_wrong(self, result: torch.Tensor, rank: int) -> int:
        """Return how many elements of a rank's result are wrong."""
        right = self.right_result(rank, result)
        if self._is_rounded:
            error = (result.double() - right.view(result.dtype).double()).abs()
            limit = 1.5 * torch.finfo(result.dtype).eps * right.view(result.dtype).double()
            return int((~(error <= limit)).sum())
        # Bytes can be compared in every dtype, and a NaN counts as wrong.
        differs = result.view(torch.uint8) != right.view(torch.uint8)
        return int(differs.view(-1, result.itemsize).any(1).sum())

    @property
    def _is_rounded(self) -> bool:
        """Whether the result may be rounded, such as a mean that a library gets by a factor of 1 / ranks."""
        a_power_of_two = self._ranks.bit_count() == 1
        floating = getattr(torch, self._exchange.dtype).is_floating_point
        return self._exchange.operation == "avg" and floating and not a_power_of_two

    def _reduced(self) -> torch.Tensor:
        """Return one period of the right result of a reduction over all ranks."""
        every = torch.stack([self._period_as_int64(rank) for rank in range(self._ranks)])
        operation = self._exchange.operation
        if operation == "avg":
            reduced = every.sum(0) // self._ranks
        elif operation in {"min", "max"}:
            reduced = every.amin(0) if operation == "min" else every.amax(0)
        else:
            reduced = every.sum(0) if operation == "sum" else every.prod(0)
        return reduced.to(getattr(torch, self._exchange.dtype))

    def _means(self, index: torch.Tensor) -> torch.Tensor:
        """Return the mean for each index, so small that the sum over all ranks fits into the dtype."""
        if getattr(torch, self._exchange.dtype).is_floating_point or 2 * self._ranks <= self._exact:
            return 1 + index % 2
        return index % 2 if self._ranks <= self._exact else torch.zeros_like(index)

    def _period(self, rank: int) -> torch.Tensor:
        """Return one period of a rank's data, in the dtype of the collective."""
        return self._period_as_int64(rank).to(getattr(torch, self._exchange.dtype))

    def _period_as_int64(self, rank: int) -> torch.Tensor:
        """Return one period of a rank's data as int64, in which every number is exact."""
        index = torch.arange(_PERIOD)
        mixed = index * index % _PERIOD
        ranks, operation = self._ranks, self._exchange.operation
        if operation == "avg":
            # Only one rank gives a value, so that the mean is whole.
            return torch.where(mixed % ranks == rank, ranks * self._means(index), 0)
        if operation == "prod":
            # Only one rank gives a factor, so that the product stays small.
            chosen = (mixed + rank) % max(_FACTORS_APART, ranks) == 0
            return torch.where(chosen, 2 << (index % 2), 1)
        adding = ranks if operation == "sum" else 1
        sparse = -(-adding // self._exact)
        values = min(_VALUES, self._exact // -(-adding // sparse) + 1)
        data = (mixed + 7 * index * rank + 3 * rank + 1) % _VALUES % values
        return torch.where((mixed + rank) % sparse == 0, data, 0)


def _repeated(period: torch.Tensor, like: torch.Tensor, skipped: int) -> torch.Tensor:
    """Return a period, repeated to the size of ``like``; it begins after ``skipped`` elements."""
    # As bytes, because torch cannot repeat every dtype.
    shifted = period.roll(-(skipped % _PERIOD)).view(torch.uint8).to(like.device)
    nbytes = like.numel() * like.itemsize
    return shifted.repeat(-(-nbytes // shifted.numel()))[:nbytes].view(like.dtype)

"""Derive times and bandwidths of collectives alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from compare.schema.collectives import ELEMENT_BYTES, CollectivesRun, SizeTiming, SweepLaunch

Status: TypeAlias = Literal["timed", "refused", "failed", "not run"]


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of the iterations of all launches, in seconds per call."""

    median: float
    low: float
    """The first quartile."""
    high: float
    """The third quartile."""
    minimum: float
    n: int
    """Iterations of all launches."""

    @property
    def share(self) -> float:
        """Return half of the distance of the quartiles, relative to the median."""
        return (self.high - self.low) / 2 / self.median


class GroupAtSize(msgspec.Struct, frozen=True, kw_only=True):
    """One group's all-reduce of one size, as nccl-tests show it."""

    group: str
    message_bytes: int
    count: int
    """Elements."""
    dtype: str
    operation: str
    seconds: Spread | None
    """Of the slowest rank; None if there is no time."""
    algorithm_bandwidth: float | None
    """Message bytes over the median, per second."""
    bus_bandwidth: float | None
    """The same times 2 (n - 1) / n among n ranks."""
    wrong: int | None
    """Wrong elements on all ranks, in all launches."""
    status: Status
    """``refused`` by the library at this size, or ``failed`` as a launch."""
    problem: str = ""
    """Why there is no time; empty if there is one."""


def summarise_sweeps(run: CollectivesRun) -> list[GroupAtSize]:
    """Return every group at every size, groups in the user's order."""
    return [
        _at_size(run, group, index) for group in run.config.groups for index in range(len(run.config.sizes))
    ]


def all_reduce_factor(ranks: int) -> float:
    """Return busbw over algbw.

    It is what each rank sends in an optimal all-reduce, over the message (PERFORMANCE.md of nccl-tests).
    """
    return 2 * (ranks - 1) / ranks


def _at_size(run: CollectivesRun, group: str, index: int) -> GroupAtSize:
    config = run.config
    nbytes = config.sizes[index]
    launches = [launch for launch in run.launches if launch.group == group]
    timings = [rank.timings[index] for launch in launches for rank in launch.ranks]
    samples = [sample for launch in launches for sample in _slowest(launch, index)]
    seconds = _spread(samples) if samples else None
    status, problem = _problem(run, group, timings) if seconds is None else ("timed", "")
    bandwidth = nbytes / seconds.median if seconds else None
    return GroupAtSize(
        group=group,
        message_bytes=nbytes,
        count=nbytes // ELEMENT_BYTES,
        dtype=config.dtype,
        operation=config.operation,
        seconds=seconds,
        algorithm_bandwidth=bandwidth,
        bus_bandwidth=bandwidth * all_reduce_factor(config.ranks) if bandwidth else None,
        wrong=sum(timing.wrong for timing in timings) if seconds else None,
        status=status,
        problem=problem,
    )


def _slowest(launch: SweepLaunch, index: int) -> Iterator[float]:
    """Return the slowest rank's seconds in each iteration of a size."""
    for ns in zip(*(rank.timings[index].ns for rank in launch.ranks), strict=True):
        yield max(ns) / 1e9


def _spread(samples: Sequence[float]) -> Spread:
    several = samples if len(samples) > 1 else [*samples, *samples]
    low, median, high = statistics.quantiles(several, n=4, method="inclusive")
    return Spread(median=median, low=low, high=high, minimum=min(samples), n=len(samples))


def _problem(run: CollectivesRun, group: str, timings: Sequence[SizeTiming]) -> tuple[Status, str]:
    if refused := next((timing.refused for timing in timings if timing.refused), ""):
        return "refused", refused
    if failed := next((failure.message for failure in run.failures if failure.arm == group), ""):
        return "failed", failed
    return "not run", "it was stopped before"

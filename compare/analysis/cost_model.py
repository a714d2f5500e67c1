"""Split the time of collectives into latency and bandwidth."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

from compare.analysis.step_times import collective_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compare.schema.results import Launch, RankResult


class Parts(NamedTuple):
    """What a step's collectives take alone, in two parts."""

    seconds: float
    fixed_seconds: float
    """What does not depend on the messages' sizes; the rest grows with them."""


def split_collectives(launch: Launch) -> Parts | None:
    """Split the time of a step's collectives alone by how the all-reduce's time grows with its bytes.

    With latency a and seconds per byte 1 / b of the sweep's line (``fit_line``), n calls of S bytes together
    are expected to take n a + S / b. The measured time is divided in that proportion: a sweep that was slower
    or quicker throughout than the collectives favours neither part. The fixed part is n a at most, for large
    messages may pass more slowly than the sweep's. Where a library fuses several calls, nobody tells into
    how many messages, and there is no answer.
    """
    seconds, points = collective_seconds(launch), _sweep_points(launch)
    if _fuses(launch.ranks[0]):
        return None
    if not seconds or len(points) < 2:  # noqa: PLR2004 -- a line takes two
        return None
    latency, seconds_per_byte = fit_line(points)
    sizes = launch.ranks[0].message_bytes
    latencies = len(sizes) * latency
    expected = latencies + sum(sizes) * seconds_per_byte
    return Parts(seconds, min(seconds * latencies / expected, latencies)) if expected else None


def _fuses(rank: RankResult) -> bool:
    return len(rank.message_bytes) > 1 and "fusion_bytes" in rank.attestation["group"]


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit t = a + S / b to (bytes, seconds): the latency a, and the seconds per byte 1 / b, neither negative.

    The model is Hockney's (The communication challenge for MPP, Parallel Computing 20, 1994). Relative
    errors are made least, or the largest message alone would settle both.
    """
    weights = [1 / seconds**2 for _, seconds in points]
    total = sum(weights)
    size = sum(w * s for w, (s, _) in zip(weights, points, strict=True)) / total
    time = sum(w * t for w, (_, t) in zip(weights, points, strict=True)) / total
    spread = sum(w * (s - size) ** 2 for w, (s, _) in zip(weights, points, strict=True))
    joint = sum(w * (s - size) * (t - time) for w, (s, t) in zip(weights, points, strict=True))
    slope = max(0.0, joint / spread) if spread else 0.0
    latency = time - slope * size
    if latency >= 0:
        return latency, slope
    squares = sum(w * s * s for w, (s, _) in zip(weights, points, strict=True))
    return 0.0, sum(w * s * t for w, (s, t) in zip(weights, points, strict=True)) / squares


def _sweep_points(launch: Launch) -> list[tuple[float, float]]:
    """Bytes, and the median over samples of the mean over ranks in seconds, of every size."""
    found = []
    for sizes in zip(*(rank.sweep for rank in launch.ranks), strict=True):
        samples = zip(*(sweep.ns for sweep in sizes), strict=True)
        found.append((float(sizes[0].message_bytes), statistics.median(map(statistics.fmean, samples)) / 1e9))
    return found

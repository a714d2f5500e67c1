"""Draw lines over sizes, ranks and hosts, with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from compare.report.pictures.canvas import RIGHT, Picture
from compare.report.pictures.scales import Scale, around, byte_ticks, from_zero, linear_ticks, log_ticks

SERIES = 8
"""Number of colours and of markers for lines."""
_HEIGHT, _LEFT = 230.0, 62


class Point(NamedTuple):
    """A point of a line, with the interval of its y."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    is_open: bool = False
    """Whether the dot is hollow, for a reason that the caption gives."""


class Axis(NamedTuple):
    """How one kind of value is shown on an axis: its scale, its ticks, and the words of a value."""

    scale: Callable[[Iterable[float], float, float], Scale]
    ticks: Callable[[Scale], Sequence[float]]
    words: Callable[[float], str]


def time_words(seconds: float) -> str:
    """Return seconds as text in µs, ms or s."""
    if not seconds:
        return "0"
    if seconds < 1e-3:  # noqa: PLR2004
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def bytes_words(size: float) -> str:
    """Return bytes as text in B, KiB, MiB or GiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:g} B"


def rate_words(rate: float) -> str:
    """Return bytes per second as text in B/s, kB/s, MB/s or GB/s."""
    for unit, name in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if rate >= unit:
            return f"{rate / unit:.3g} {name}"
    return f"{rate:.3g} B/s"


def of_counts(counts: Iterable[float], noun: str) -> Axis:
    """Return a logarithmic axis with a tick at each count, such as ``2 hosts``."""
    known = sorted(set(counts))
    return Axis(around, lambda _: known, lambda value: f"{value:g} {noun}{'' if value == 1 else 's'}")


BYTES = Axis(around, lambda scale: byte_ticks(scale.low, scale.high), bytes_words)
SECONDS = Axis(around, lambda scale: log_ticks(scale.low, scale.high), time_words)
RATE = Axis(around, lambda scale: log_ticks(scale.low, scale.high), rate_words)
SHARE = Axis(from_zero, lambda scale: linear_ticks(scale.low, scale.high), lambda share: f"{share * 100:g} %")
SECONDS_FROM_ZERO = Axis(from_zero, lambda scale: linear_ticks(scale.low, scale.high), time_words)


def draw_lines(
    picture: Picture, lines: Mapping[str, Sequence[Point]], across: Axis, up: Axis
) -> Iterator[Picture]:
    """Draw the lines that have points into a picture, with axes and a legend, and yield it.

    If no line has a point, nothing is yielded.
    """
    lines = {label: line for label, line in lines.items() if line}
    if not lines:
        return
    entries = [
        ("line" if n < SERIES else "hollow line", f"series s{n % SERIES}", label)
        for n, label in enumerate(lines)
    ]
    picture.legend(entries)
    top = picture.height + 6
    points = [point for line in lines.values() for point in line]
    wide = across.scale((point.x for point in points), _LEFT, RIGHT)
    ends = (end for point in points for end in (point.y, point.low, point.high) if end is not None)
    tall = up.scale(ends, top + _HEIGHT, top)
    for tick in up.ticks(tall):
        y = tall.at(tick)
        picture.path("grid", f"M{_LEFT} {y:g}H{RIGHT}")
        picture.write("tick end", _LEFT - 6, y + 4, up.words(tick))
    for number, (label, line) in enumerate(lines.items()):
        _draw_line(picture, label, number, line, wide, tall)
    picture.height = top + _HEIGHT
    picture.axis(wide, across.ticks(wide), across.words, top=top)
    picture.description = "; ".join(
        f"{label}: {across.words(line[0].x)} {up.words(line[0].y)}, "
        f"{across.words(line[-1].x)} {up.words(line[-1].y)}"
        for label, line in lines.items()
    )
    yield picture


def _draw_line(  # noqa: PLR0917 -- a line with its place
    picture: Picture, label: str, number: int, line: Sequence[Point], wide: Scale, tall: Scale
) -> None:
    style = f"series s{number % SERIES}"
    places = [(wide.at(point.x), tall.at(point.y)) for point in line]
    for point, (x, _) in zip(line, places, strict=True):
        if point.low is not None and point.high is not None:
            picture.line(f"{style} whisker", x, tall.at(point.low), x, tall.at(point.high))
    picture.path(f"{style} line", "M" + "L".join(f"{x:g} {y:g}" for x, y in places), label)
    picture.dots(style, places, label)
    hollow = [place for place, point in zip(places, line, strict=True) if point.is_open or number >= SERIES]
    if hollow:  # colours repeat from the ninth line on, and hollow dots tell them apart
        picture.dots("hole", hollow)

"""Draw pictures as marks, which a template writes as SVG: axes, legends, rows of bars, and lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from compare.analysis.estimate import Estimate
from compare.report.cells import cut_in_the_middle, in_units

WIDTH = 480
"""Width of every picture in its own units."""
LEFT, RIGHT = 8, WIDTH - 12
SERIES = 8
"""Number of colours and of markers for lines."""
_CHARACTER = 7.0
"""Width of a character, estimated generously so that labels never touch."""
_TICK_HEIGHT = 22
_LONGEST_TITLE = 200
_LONGEST_LEGEND = 60
_SWATCH = 18
_LINES_HEIGHT, _LINES_LEFT = 230.0, 62
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_MOST_TICKS = 6
_SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
_BYTES = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
_RATES = {"GB/s": 1e9, "MB/s": 1e6, "kB/s": 1e3, "B/s": 1.0}


# ---- axes ----


class Scale(NamedTuple):
    """An axis on which values from ``low`` to ``high`` lie between the pixels ``start`` and ``end``."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, own = self.low, self.high, value
        if self.is_log:
            low, high, own = math.log(low), math.log(high), math.log(value)
        return round(self.start + (self.end - self.start) * (own - low) / (high - low), 1)

    def ticks(self) -> list[float]:
        """Return a few round values between the ends."""
        return (log_ticks if self.is_log else linear_ticks)(self.low, self.high)


def axis_from_zero(values: Iterable[float], start: float, end: float) -> Scale:
    """Return a linear axis from zero to beyond the largest value."""
    return Scale(0.0, max([*values, 0.0]) * 1.02 or 1.0, start, end)


def log_axis(values: Iterable[float], start: float, end: float) -> Scale:
    """Return a logarithmic axis that holds one or more values, all above zero, with a margin."""
    logs = [math.log(value) for value in values]
    margin = max(0.02, 0.06 * (max(logs) - min(logs)))
    return Scale(math.exp(min(logs) - margin), math.exp(max(logs) + margin), start, end, is_log=True)


def linear_ticks(low: float, high: float) -> list[float]:
    """Return round values between two ends: six or fewer, and one more if both ends are round."""
    rough = (high - low) / _MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in _STEPS if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [_round(number * step) for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return a few round values for a logarithmic axis.

    If the ends differ by less than a factor of two, the values are those of ``linear_ticks``. Otherwise there
    are at most six.
    """
    if high / low < 2:  # noqa: PLR2004
        return linear_ticks(low, high)
    for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [_round(step * 10.0**power) for power in powers for step in steps]
        found = [value for value in found if low <= value <= high]
        if len(found) <= _MOST_TICKS:
            return found
    return found[:: math.ceil(len(found) / _MOST_TICKS)]


def byte_ticks(scale: Scale) -> list[float]:
    """Return at most six powers of two within a scale, with the same factor between neighbours."""
    powers = range(math.ceil(math.log2(scale.low)), math.floor(math.log2(scale.high)) + 1)
    return [float(2**power) for power in powers[:: max(1, math.ceil(len(powers) / _MOST_TICKS))]]


def _round(value: float) -> float:
    """Return a value with twelve digits, without the errors of floating-point arithmetic."""
    return float(f"{value:.12g}")


class Axis(NamedTuple):
    """How one kind of value is shown on an axis: its scale, the words of a value, and its ticks."""

    scale: Callable[[Iterable[float], float, float], Scale]
    words: Callable[[float], str]
    ticks: Callable[[Scale], Sequence[float]] = Scale.ticks


def of_counts(counts: Iterable[float], noun: str) -> Axis:
    """Return a logarithmic axis with a tick at each count, such as ``2 hosts``."""
    known = sorted(set(counts))
    return Axis(log_axis, lambda count: f"{count:g} {noun}{'' if count == 1 else 's'}", lambda _: known)


def _time_words(seconds: float) -> str:
    return in_units(seconds, _SECONDS) if seconds else "0"


BYTES = Axis(log_axis, lambda size: in_units(size, _BYTES), byte_ticks)
SECONDS = Axis(log_axis, _time_words)
RATE = Axis(log_axis, lambda rate: in_units(rate, _RATES))
SHARE = Axis(axis_from_zero, lambda share: f"{share * 100:g} %")
SECONDS_FROM_ZERO = Axis(axis_from_zero, _time_words)


# ---- marks ----


@dataclass(frozen=True)
class Mark:
    """One SVG element of a picture."""

    tag: str
    style: str
    """Classes of the stylesheet."""
    at: dict[str, float | str]
    """Attributes by their names in SVG."""
    text: str = ""
    """Content of a text, or the title of a shape."""


@dataclass
class Picture:
    """One picture with its words; marks are added from the top down, as far as ``height``."""

    key: str
    """Name of its file and of its place in the page."""
    heading: str
    caption: str
    description: str = ""
    """The figures in words, for those who do not see the picture."""
    marks: list[Mark] = field(default_factory=list)
    height: float = 4.0
    width: int = WIDTH

    def rect(self, style: str, left: float, right: float, height: float, *, title: str = "") -> None:
        """Draw a rectangle whose top is at the present height, which stays as it is."""
        self.marks.append(_rect(style, left, right, self.height, height, title))

    def line(self, style: str, x1: float, y1: float, x2: float, y2: float) -> None:
        """Draw a straight line between two points."""
        self.path(style, f"M{x1:g} {y1:g}L{x2:g} {y2:g}")

    def path(self, style: str, d: str, title: str = "") -> None:
        """Draw a path; ``d`` has the form of SVG, and a long title is cut."""
        self.marks.append(Mark("path", style, {"d": d}, title[:_LONGEST_TITLE]))

    def dots(self, style: str, points: Iterable[tuple[float, float]], title: str = "") -> None:
        """Draw dots as one path of lines without length."""
        self.path(f"dot {style}", "".join(f"M{x:g} {y:g}h0" for x, y in points), title)

    def write(self, style: str, x: float, y: float, text: str) -> None:
        """Write a text."""
        self.marks.append(Mark("text", style, {"x": round(x, 1), "y": round(y, 1)}, text))

    def legend(self, entries: Sequence[tuple[str, str, str]]) -> None:
        """Draw a legend; an entry has a kind of mark, its classes, and words.

        Kinds are ``rect``, ``line`` and ``dot``, the last two also with ``hollow`` before them.
        """
        x, self.height = float(LEFT), self.height + 14
        for kind, style, words in entries:
            shown = cut_in_the_middle(words, _LONGEST_LEGEND)
            wide = _SWATCH + 6 + len(shown) * _CHARACTER + 10
            if x > LEFT and x + wide > WIDTH:
                x, self.height = float(LEFT), self.height + 18
            y = self.height - 4
            if kind == "rect":
                self.marks.append(_rect(style, x, x + _SWATCH, y - 6, 11))
            if kind.endswith("line"):
                self.line(f"{style} line", x, y, x + _SWATCH, y)
            if kind != "rect":
                self.dots(style, [(x + _SWATCH / 2, y)])
            if kind.startswith("hollow"):
                self.dots("hole", [(x + _SWATCH / 2, y)])
            self.write("key", x + _SWATCH + 6, self.height, shown)
            x += wide
        self.height += 8

    def name(self, name: str, figure: str = "") -> None:
        """Write the name of a row and its figure, and move the height below them."""
        self.height += 16
        room = int((WIDTH - LEFT - 4 - len(figure) * _CHARACTER) / _CHARACTER) - 1
        self.write("name", LEFT, self.height, cut_in_the_middle(name, max(8, room)))
        self.write("figure", RIGHT, self.height, figure)
        self.height += 5

    def band(self, style: str, left: float, right: float, *, top: float) -> None:
        """Shade a band behind all other marks, from ``top`` to the end of the last row."""
        self.marks.insert(0, _rect(style, left, right, top, self.height + 4 - top))

    def axis(self, axis: Axis, scale: Scale, *, top: float) -> None:
        """Draw a grid line for each tick behind all marks, and the labels below that do not touch."""
        bottom = self.height + 4
        grid: list[Mark] = []
        last = float("-inf")
        for tick in axis.ticks(scale):
            x = scale.at(tick)
            grid.append(Mark("path", "grid", {"d": f"M{x:g} {top:g}V{bottom:g}"}))
            label, half = axis.words(tick), len(axis.words(tick)) * _CHARACTER / 2
            middle = min(max(x, half), WIDTH - half)
            if middle - half > last:  # labels never touch
                grid.append(Mark("text", "tick", {"x": round(middle, 1), "y": bottom + 15}, label))
                last = middle + half + 4
        self.marks[:0] = grid
        self.height = bottom + _TICK_HEIGHT


def _rect(style: str, left: float, right: float, top: float, height: float, title: str = "") -> Mark:  # noqa: PLR0917 -- a box
    places = {"x": left, "y": top, "width": right - left, "height": height}
    at: dict[str, float | str] = {name: round(place, 1) for name, place in places.items()}
    return Mark("rect", style, at, title[:_LONGEST_TITLE])


# ---- lines ----


class Point(NamedTuple):
    """A point of a line, with the interval of its y."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    is_open: bool = False
    """Whether the dot is hollow, for a reason that the caption gives."""

    @classmethod
    def of(cls, x: float, y: Estimate, *, is_open: bool) -> Point:
        """Make a point with the interval of an estimate."""
        return cls(x, y.mean, y.low, y.high, is_open)


def draw_lines(
    picture: Picture, points: Iterable[tuple[str, Point]], across: Axis, up: Axis
) -> Iterator[Picture]:
    """Draw a line for each label of the points into a picture, with axes and a legend, and yield it.

    If there are no points, nothing is yielded.
    """
    lines: dict[str, list[Point]] = {}
    for label, point in points:
        lines.setdefault(label, []).append(point)
    if not lines:
        return
    entries = [
        ("line" if n < SERIES else "hollow line", f"series s{n % SERIES}", label)
        for n, label in enumerate(lines)
    ]
    picture.legend(entries)
    top = picture.height + 6
    placed = [point for line in lines.values() for point in line]
    wide = across.scale((point.x for point in placed), _LINES_LEFT, RIGHT)
    ends = (end for point in placed for end in point[1:4] if end is not None)
    tall = up.scale(ends, top + _LINES_HEIGHT, top)
    for tick in up.ticks(tall):
        y = tall.at(tick)
        picture.path("grid", f"M{_LINES_LEFT} {y:g}H{RIGHT}")
        picture.write("tick end", _LINES_LEFT - 6, y + 4, up.words(tick))
    for number, (label, line) in enumerate(lines.items()):
        style = f"series s{number % SERIES}"
        places = [(wide.at(point.x), tall.at(point.y)) for point in line]
        for point, (x, _) in zip(line, places, strict=True):
            if point.low is not None and point.high is not None:
                picture.line(f"{style} whisker", x, tall.at(point.low), x, tall.at(point.high))
        picture.path(f"{style} line", "M" + "L".join(f"{x:g} {y:g}" for x, y in places), label)
        picture.dots(style, places, label)
        # Colours repeat from the ninth line on, and hollow dots tell them apart.
        hollow = [own for own, point in zip(places, line, strict=True) if point.is_open or number >= SERIES]
        if hollow:
            picture.dots("hole", hollow)
    picture.height = top + _LINES_HEIGHT
    picture.axis(across, wide, top=top)
    picture.description = "; ".join(
        f"{label}: {across.words(line[0].x)} {up.words(line[0].y)}, "
        f"{across.words(line[-1].x)} {up.words(line[-1].y)}"
        for label, line in lines.items()
    )
    yield picture

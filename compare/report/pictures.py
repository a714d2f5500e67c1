"""Draw pictures as lists of marks, which a template writes as SVG: legends, bars and lines."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from textwrap import wrap
from typing import Any, NamedTuple, Self

from compare.analysis.figures import Estimate
from compare.report.axes import Axis, AxisScale
from compare.report.cells import cut_in_the_middle

WIDTH = 440
"""Width of every picture in its own units; no text is below 10 pixels on a phone of 390 points."""
LEFT, RIGHT = 8, WIDTH - 12
SERIES = 8
"""Number of styles for lines, each with its own colour and dashes, in the stylesheet."""
_CHARACTER_WIDTH = 7.5
"""Estimated width of a character; it is rather too large, so that labels never touch."""
_BOLD = 1.25
"""How much wider bold text is; no system's font exceeds that together with ``_CHARACTER_WIDTH``."""
_TICK_HEIGHT = 22
_LINE_HEIGHT = 18
_LONGEST_TITLE = 200
_SWATCH_WIDTH = 18
_LINES_HEIGHT, _LINES_LEFT = 210.0, 68
_HEADING_CHARACTERS, _TEXT_CHARACTERS = 46, 60
"""Characters in a line of the heading, and of the text around it, in a picture that stands alone."""
_FIXED_SPACE = "\N{NO-BREAK SPACE}"
WIDEST = 4.0
"""An interval widens an axis by this factor at most; if it reaches further, it is cut at the edge."""


# ---- marks ----


@dataclass(frozen=True)
class Mark:
    """One SVG element of a picture."""

    tag: str
    style: str
    """Classes of the stylesheet."""
    attributes: dict[str, float | str]
    """Attributes by their names in SVG."""
    text: str = ""
    """Content of a text element, or the title of a shape."""


@dataclass
class Picture:
    """One picture with its texts, to which its methods add marks from the top down."""

    key: str
    """Name of the picture's file, and of its elements in the page."""
    heading: str
    caption: str
    description: str = ""
    """The figures in words, for readers who cannot see the picture."""
    marks: list[Mark] = field(default_factory=list)
    top: float = 0.0
    """Where the picture begins; above zero stands what is written above the first mark."""
    height: float = 4.0
    """Height of what is drawn so far, so that the next mark starts there."""
    width: int = WIDTH

    def rect(
        self,
        style: str,
        left: float,
        right: float,
        height: float,
        *,
        top: float | None = None,
        title: str = "",
    ) -> None:
        """Draw a rectangle with its top at ``top``, or at ``self.height``, which stays as it is."""
        top = self.height if top is None else top
        self.marks.append(_rect(style, left, right, top, height, title))

    def line(self, style: str, x1: float, y1: float, x2: float, y2: float) -> None:
        """Draw a straight line between two points."""
        self.path(style, f"M{x1:g} {y1:g}L{x2:g} {y2:g}")

    def path(self, style: str, d: str, title: str = "") -> None:
        """Draw a path, with ``d`` as in SVG; a title of more than 200 characters is cut."""
        self.marks.append(Mark("path", style, {"d": d}, title[:_LONGEST_TITLE]))

    def dots(self, style: str, points: Iterable[tuple[float, float]], title: str = "") -> None:
        """Draw a dot at each point, all as one path of lines that have no length."""
        self.path(f"dot {style}", "".join(f"M{x:g} {y:g}h0" for x, y in points), title)

    def write(self, style: str, x: float, y: float, text: str) -> None:
        """Write a text at a point, which the style may make its start, middle or end."""
        self.marks.append(Mark("text", style, {"x": round(x, 1), "y": round(y, 1)}, text))

    def legend(self, entries: Sequence[tuple[str, str, str]]) -> None:
        """Draw a legend below the present height; an entry is a kind of mark, its classes, and a text.

        The kinds are ``rect``, ``line``, ``dot``, ``hollow line`` and ``hollow dot``.
        """
        x, self.height = float(LEFT), self.height + 14
        for kind, style, text in entries:
            shown = _fitted(text, WIDTH - LEFT - _SWATCH_WIDTH - 6)
            width = _SWATCH_WIDTH + 6 + _text_width(shown) + 10
            if x > LEFT and x + width > WIDTH:
                x, self.height = float(LEFT), self.height + 18
            y = self.height - 4
            if kind == "rect":
                self.marks.append(_rect(style, x, x + _SWATCH_WIDTH, y - 6, 11))
            if kind.endswith("line"):
                self.line(f"{style} line", x, y, x + _SWATCH_WIDTH, y)
            if kind != "rect":
                self.dots(style, [(x + _SWATCH_WIDTH / 2, y)])
            if kind.startswith("hollow"):
                self.dots("hole", [(x + _SWATCH_WIDTH / 2, y)])
            self.write("key", x + _SWATCH_WIDTH + 6, self.height, shown)
            x += width
        self.height += 8

    def row_heading(self, name: str, figure: str = "") -> None:
        """Write a row's name to the left and its figure to the right, and move the height below them.

        If the two would touch, the figure stands on a line of its own.
        """
        self.height += 16
        whole = WIDTH - LEFT - 12
        is_beside = _BOLD * _text_width(name) + _text_width(figure) <= whole
        self.write("name", LEFT, self.height, name if is_beside else _fitted(name, whole / _BOLD))
        self.height += 0 if is_beside else _LINE_HEIGHT
        self.write("figure", RIGHT, self.height, figure)
        self.height += 5

    def band(self, style: str, left: float, right: float, *, top: float) -> None:
        """Shade a band behind all other marks, from ``top`` down to the end of the last row."""
        self.marks.insert(0, _rect(style, left, right, top, self.height + 4 - top))

    def axis(self, axis: Axis, scale: AxisScale, *, top: float) -> None:
        """Draw a grid line behind all marks for each tick, and below it a label unless labels would touch."""
        bottom = self.height + 4
        grid: list[Mark] = []
        last = float("-inf")
        for tick in axis.ticks(scale):
            x = scale.pixel(tick)
            grid.append(Mark("path", "grid", {"d": f"M{x:g} {top:g}V{bottom:g}"}))
            label = axis.label(tick)
            half = len(label) * _CHARACTER_WIDTH / 2
            middle = min(max(x, half), WIDTH - half)
            if middle - half > last:  # labels never touch
                grid.append(Mark("text", "tick", {"x": round(middle, 1), "y": bottom + 15}, label))
                last = middle + half + 4
        self.marks[:0] = grid
        self.write("tick", (scale.start + scale.end) / 2, bottom + 15 + _LINE_HEIGHT, axis.name)
        self.height = bottom + _TICK_HEIGHT + _LINE_HEIGHT

    def alone(self, source: Sequence[str]) -> Picture:
        """Return the picture with its heading and caption above it, and the lines of ``source`` below it.

        So it can be understood without the page, for example on a slide.
        """
        heading = [("heading", line) for line in wrap(self.heading, _HEADING_CHARACTERS)]
        caption = [("small", line) for line in _wrapped(self.caption)]
        below = [("small", part) for line in source for part in _wrapped(line)]
        above = [*heading, *caption]
        framed = replace(self, marks=[*self.marks], top=-_LINE_HEIGHT * len(above) - 8.0)
        for number, (style, line) in enumerate(above, 1):
            framed.write(style, LEFT, framed.top + number * _LINE_HEIGHT, line)
        for number, (style, line) in enumerate(below, 1):
            framed.write(style, LEFT, self.height + number * _LINE_HEIGHT, line)
        framed.height += _LINE_HEIGHT * len(below) + 8
        return framed


def _text_width(text: str) -> float:
    """Return the estimated width of a text, in which capital letters are wider."""
    return _CHARACTER_WIDTH * (len(text) + 0.5 * sum(map(str.isupper, text)))


def _fitted(name: str, width: float) -> str:
    """Return a name that is cut in its middle if it may be wider than ``width``, even in bold."""
    return cut_in_the_middle(name, max(8, int(0.95 * width * len(name) / _text_width(name))))


def _wrapped(text: str) -> list[str]:
    """Return text in lines; none begins with a dot between two parts, or with a sign of per cent."""
    tied = re.sub(" (?=[·%])", _FIXED_SPACE, text)
    return [line.replace(_FIXED_SPACE, " ") for line in wrap(tied, _TEXT_CHARACTERS)]


def _rect(style: str, left: float, right: float, top: float, height: float, title: str = "") -> Mark:  # noqa: PLR0917 -- a box
    box = {"x": left, "y": top, "width": right - left, "height": height}
    attributes: dict[str, float | str] = {name: round(value, 1) for name, value in box.items()}
    return Mark("rect", style, attributes, title[:_LONGEST_TITLE])


# ---- lines ----


class Point(NamedTuple):
    """A point of a line, with an interval from ``low`` to ``high`` around its ``y`` if that is known."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    is_open: bool = False
    """Whether the dot is drawn hollow; the caption of the picture explains why."""

    @classmethod
    def of(cls, x: float, y: Estimate, *, is_open: bool = False) -> Point:
        """Make a point whose ``y`` and interval are those of an estimate."""
        return cls(x, y.mean, y.low, y.high, is_open)

    def alone(self) -> Self:
        """Return the point without its interval."""
        return self._replace(low=None, high=None)

    def interval(self, widest: float = math.inf) -> tuple[float, ...]:
        """Return both ends of the interval, at most a factor of ``widest`` from ``y``; () if not known."""
        if self.low is None or self.high is None:
            return ()
        return max(self.low, self.y / widest), min(self.high, self.y * widest)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Lines over two axes, which a page shows as a picture and a terminal as text."""

    key: str
    heading: str
    caption: str
    lines: Mapping[str, Sequence[Point]]
    """The points of each line, by its label."""
    x_axis: Axis
    y_axis: Axis

    @classmethod
    def of(cls, points: Iterable[tuple[str, Point]], **fields: Any) -> Chart:
        """Make a chart from points that come with the labels of their lines."""
        lines: dict[str, list[Point]] = {}
        for label, point in points:
            lines.setdefault(label, []).append(point)
        return cls(lines=lines, **fields)

    def scales(self, left: float, right: float, bottom: float, top: float) -> tuple[AxisScale, AxisScale]:
        """Return the scales of both axes for all points and intervals, drawn between these positions."""
        points = [point for line in self.lines.values() for point in line]
        ends = (end for point in points for end in (point.y, *point.interval(WIDEST)))
        x_scale = self.x_axis.make_scale((point.x for point in points), left, right)
        return x_scale, self.y_axis.make_scale(ends, bottom, top)


def draw_lines(chart: Chart) -> Iterator[Picture]:
    """Yield a chart as a picture with axes and a legend; nothing is yielded if there are no points."""
    if not chart.lines:
        return
    picture = Picture(chart.key, chart.heading, chart.caption)
    picture.legend(
        [
            ("line" if n < SERIES else "hollow line", f"series s{n % SERIES}", label)
            for n, label in enumerate(chart.lines)
        ]
    )
    picture.height += _LINE_HEIGHT
    picture.write("small", LEFT, picture.height, chart.y_axis.name)
    top = picture.height + 12
    x_scale, y_scale = chart.scales(_LINES_LEFT, RIGHT, top + _LINES_HEIGHT, top)
    for tick in chart.y_axis.ticks(y_scale):
        y = y_scale.pixel(tick)
        picture.path("grid", f"M{_LINES_LEFT} {y:g}H{RIGHT}")
        picture.write("tick end", _LINES_LEFT - 6, y + 4, chart.y_axis.label(tick))
    for number, (label, line) in enumerate(chart.lines.items()):
        _draw_line(picture, number, label, line, x_scale, y_scale)
    picture.height = top + _LINES_HEIGHT
    picture.axis(chart.x_axis, x_scale, top=top)
    picture.description = "; ".join(
        f"{label}: "
        + ", ".join(
            f"{chart.y_axis.label(point.y)} at {chart.x_axis.label(point.x)}" for point in (line[0], line[-1])
        )
        for label, line in chart.lines.items()
    )
    yield picture


def _draw_line(  # noqa: PLR0917 -- a line and its two scales
    picture: Picture, number: int, label: str, line: Sequence[Point], x_scale: AxisScale, y_scale: AxisScale
) -> None:
    """Draw one line with its dots and intervals; ``number`` chooses its style."""
    style = f"series s{number % SERIES}"
    pixels = [(x_scale.pixel(point.x), y_scale.pixel(point.y)) for point in line]
    for point, (x, _) in zip(line, pixels, strict=True):
        if ends := point.interval():
            low, high = map(y_scale.pixel_within, ends)
            caps = (
                f"M{x - 3:g} {y_scale.pixel(end):g}h6" for end in ends if y_scale.low < end < y_scale.high
            )
            picture.path(f"{style} whisker", f"M{x:g} {low:g}V{high:g}{''.join(caps)}")
    picture.path(f"{style} line", "M" + "L".join(f"{x:g} {y:g}" for x, y in pixels), label)
    picture.dots(style, pixels, label)
    # Styles repeat from the ninth line on, and hollow dots tell them apart.
    hollow = [xy for xy, point in zip(pixels, line, strict=True) if point.is_open or number >= SERIES]
    if hollow:
        picture.dots("hole", hollow)

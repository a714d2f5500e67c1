"""Collect the marks of one picture, which a template writes as SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from compare.report.pictures.scales import Scale
from compare.report.rows import cut_in_the_middle

WIDTH = 480
"""Width of every picture in its own units."""
LEFT, RIGHT = 8, WIDTH - 12
_CHARACTER = 7.0
"""Width of a character, estimated generously so that labels never touch."""
_TICK_HEIGHT = 22
_LONGEST_TITLE = 200
_LONGEST_LEGEND = 60
_SWATCH = 18


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

    def axis(
        self, scale: Scale, ticks: Sequence[float], words: Callable[[float], str], *, top: float
    ) -> None:
        """Draw a grid line for each tick behind all marks, and the labels below that do not touch."""
        bottom = self.height + 4
        grid: list[Mark] = []
        last = float("-inf")
        for tick in ticks:
            x = scale.at(tick)
            grid.append(Mark("path", "grid", {"d": f"M{x:g} {top:g}V{bottom:g}"}))
            label, half = words(tick), len(words(tick)) * _CHARACTER / 2
            middle = min(max(x, half), WIDTH - half)
            if middle - half > last:  # labels never touch
                grid.append(Mark("text", "tick", {"x": round(middle, 1), "y": bottom + 15}, label))
                last = middle + half + 4
        self.marks[:0] = grid
        self.height = bottom + _TICK_HEIGHT


def _rect(style: str, left: float, right: float, top: float, height: float, title: str = "") -> Mark:  # noqa: PLR0917 -- a box
    at: dict[str, float | str] = {
        "x": round(left, 1),
        "y": round(top, 1),
        "width": round(right - left, 1),
        "height": round(height, 1),
    }
    return Mark("rect", style, at, title[:_LONGEST_TITLE])

"""Draw charts in a terminal, with a mark for each point, a line between marks, and intervals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from string import ascii_letters

from rich.cells import cell_len
from rich.text import Text

from compare.report.axes import Axis, AxisScale
from compare.report.cells import cut_in_the_middle
from compare.report.pictures import Chart
from compare.text import printable

_NARROWEST, _WIDEST = 60, 120
_ROWS = 12
_MARKS = ("●○", "▲△", "■□", "◆◇", "▼▽", "★☆", *(letter * 2 for letter in ascii_letters))
"""The mark of each line, and its mark where a picture would draw a hollow dot."""
_COLOURS = ("cyan", "yellow", "green", "red", "magenta", "blue")
_LINE, _INTERVAL, _SEVERAL, _SHARED = "·", "│", "*", "bold"
_LONGEST_LABEL = 24


def plot(chart: Chart, width: int) -> Iterator[Text]:
    """Yield the lines of a chart, at most 120 cells wide.

    Nothing is yielded if ``width`` is below 60 cells, or if no line has two points.
    """
    if width < _NARROWEST or not any(len(line) > 1 for line in chart.lines.values()):
        return
    _, labels_scale = chart.scales(0, 1, _ROWS - 1, 0)
    labels = {round(labels_scale.pixel(tick)): tick for tick in chart.y_axis.ticks(labels_scale)}
    texts = {row: chart.y_axis.label(tick) for row, tick in labels.items()}
    margin = max(map(len, texts.values())) + 1
    columns = min(width, _WIDEST) - margin - 2
    x_scale, y_scale = chart.scales(0, columns - 1, _ROWS - 1, 0)
    yield Text(f" {chart.y_axis.name}", "dim")
    rows = _cells(chart, x_scale, y_scale, columns)
    for row, cells in enumerate(rows):
        line = Text().append(f"{texts.get(row, ''):>{margin}} {'┤' if row in texts else '│'}", "dim")
        for mark, style in cells:
            line.append(mark, style)
        line.rstrip()
        yield line
    yield from _x_axis(chart.x_axis, x_scale, columns, margin)
    shared = [f"{_SEVERAL} several"] if any((_SEVERAL, _SHARED) in cells for cells in rows) else []
    yield from _legend([*chart.lines, *shared], min(width, _WIDEST))


def _cells(chart: Chart, x_scale: AxisScale, y_scale: AxisScale, columns: int) -> list[list[tuple[str, str]]]:
    """Return the rows of the plot from the top down; each cell has a character and a style."""
    cells = [[(" ", "")] * columns for _ in range(_ROWS)]
    marks: list[tuple[int, int, str, str]] = []
    for number, line in enumerate(chart.lines.values()):
        style = _COLOURS[number % len(_COLOURS)]
        places = [(round(x_scale.pixel(point.x)), round(y_scale.pixel(point.y))) for point in line]
        for (x, y), (next_x, next_y) in pairwise(places):
            steps = max(abs(next_x - x), abs(next_y - y), 1)
            for step in range(1, steps):
                part = step / steps
                cells[round(y + (next_y - y) * part)][round(x + (next_x - x) * part)] = (_LINE, style)
        for point, (x, y) in zip(line, places, strict=True):
            ends = [round(y_scale.pixel_within(end)) for end in point.interval()]
            for row in range(min(ends, default=0), max(ends, default=-1) + 1):
                cells[row][x] = (_INTERVAL, style)
            marks.append((x, y, _MARKS[number % len(_MARKS)][point.is_open], style))
    for x, y, mark, style in marks:
        is_free = cells[y][x][0] in {" ", _LINE, _INTERVAL, mark}
        cells[y][x] = (mark, style) if is_free else (_SEVERAL, _SHARED)
    return cells


def _x_axis(axis: Axis, scale: AxisScale, columns: int, margin: int) -> Iterator[Text]:
    """Yield the axis below the plot, its labels as far as they fit side by side, and its name."""
    line, labels, end = ["─"] * columns, "", -1
    for tick in axis.ticks(scale):
        x, text = round(scale.pixel(tick)), axis.label(tick)
        line[x] = "┬"
        left = min(max(0, x - len(text) // 2), columns - len(text))
        if left > end:
            labels += " " * (left - len(labels)) + text
            end = len(labels)
    indent = " " * (margin + 2)
    yield Text(f"{' ' * (margin + 1)}└{''.join(line)}", "dim")
    yield Text(f"{indent}{labels}", "dim")
    yield Text(f"{indent}{axis.name}", "dim")


def _legend(labels: Iterable[str], width: int) -> Iterator[Text]:
    """Yield the marks with the labels of their lines, in as many lines of text as they need."""
    line = Text(" ")
    for number, label in enumerate(labels):
        name = cut_in_the_middle(printable(label), _LONGEST_LABEL)
        if cell_len(line.plain) + cell_len(name) + 4 > width:
            yield line
            line = Text(" ")
        if not label.startswith(_SEVERAL):
            line.append(_MARKS[number % len(_MARKS)][0], _COLOURS[number % len(_COLOURS)]).append(" ")
        line.append(f"{name}  ")
    yield line

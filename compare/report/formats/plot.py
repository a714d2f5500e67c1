"""Draw charts in a terminal, with a mark for each point and a line between marks.

A terminal has too few cells for the intervals, which stand in the table above and in the pictures of a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice, pairwise

from rich.text import Text

from compare.report.axes import Axis, AxisScale
from compare.report.cells import cut_in_the_middle
from compare.report.pictures import Chart
from compare.text import listed, printable

_NARROWEST, _WIDEST = 60, 120
_ROWS = 12
_MARKS = ("●○", "▲△", "■□", "◆◇")
"""Each line's mark, and its mark for a hollow dot of a picture; further lines are left out."""
_COLOURS = ("cyan", "yellow", "green", "red")
_LINE, _SEVERAL, _SHARED = "·", "*", "bold"
_FEWEST_BETWEEN = 4
"""Marks that are nearer than this many cells need no line between them."""
_LONGEST_LABEL = 24


def plot(chart: Chart, width: int) -> Iterator[Text]:
    """Yield the lines of a chart, at most 120 cells wide.

    Nothing is yielded if ``width`` is below 60 cells, or if no line has two points.
    """
    if width < _NARROWEST or not any(len(line) > 1 for line in chart.lines.values()):
        return
    lines = {label: [point.alone() for point in line] for label, line in chart.lines.items()}
    shown = replace(chart, lines=dict(islice(lines.items(), len(_MARKS))))
    _, labels_scale = shown.scales(0, 1, _ROWS - 1, 0)
    labels = {round(labels_scale.pixel(tick)): tick for tick in shown.y_axis.ticks(labels_scale)}
    texts = {row: shown.y_axis.label(tick) for row, tick in labels.items()}
    margin = max(map(len, texts.values())) + 1
    columns = min(width, _WIDEST) - margin - 2
    x_scale, y_scale = shown.scales(0, columns - 1, _ROWS - 1, 0)
    yield Text(f" {shown.y_axis.name}", "dim")
    rows = _cells(shown, x_scale, y_scale, columns)
    for row, cells in enumerate(rows):
        line = Text().append(f"{texts.get(row, ''):>{margin}} {'┤' if row in texts else '│'}", "dim")
        for mark, style in cells:
            line.append(mark, style)
        line.rstrip()
        yield line
    yield from _x_axis(shown.x_axis, x_scale, columns, margin)
    several = [f"{_SEVERAL} several"] if any((_SEVERAL, _SHARED) in cells for cells in rows) else []
    left_out = [f"not drawn: {listed(list(lines)[len(_MARKS) :])}"] if len(lines) > len(_MARKS) else []
    yield from _legend(shown.lines, [*several, *left_out], min(width, _WIDEST))


def _cells(chart: Chart, x_scale: AxisScale, y_scale: AxisScale, columns: int) -> list[list[tuple[str, str]]]:
    """Return the rows of the plot from the top down; each cell has a character and a style."""
    cells = [[(" ", "")] * columns for _ in range(_ROWS)]
    marks: list[tuple[int, int, str, str]] = []
    for number, line in enumerate(chart.lines.values()):
        style = _COLOURS[number]
        places = [(round(x_scale.pixel(point.x)), round(y_scale.pixel(point.y))) for point in line]
        for (x, y), (next_x, next_y) in pairwise(places):
            steps = max(abs(next_x - x), abs(next_y - y), 1)
            for step in range(1, steps if steps >= _FEWEST_BETWEEN else 1):
                part = step / steps
                cells[round(y + (next_y - y) * part)][round(x + (next_x - x) * part)] = (_LINE, style)
        for point, (x, y) in zip(line, places, strict=True):
            marks.append((x, y, _MARKS[number][point.is_open], style))
    for x, y, mark, style in marks:
        is_free = cells[y][x][0] in {" ", _LINE, mark}
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


def _legend(labels: Iterable[str], remarks: Iterable[str], width: int) -> Iterator[Text]:
    """Yield the marks with the labels of their lines, then the remarks, in as many lines as they need."""
    names = [Text(cut_in_the_middle(printable(label), _LONGEST_LABEL)) for label in labels]
    entries = [
        Text(mark[0], colour) + Text(" ") + name
        for mark, colour, name in zip(_MARKS, _COLOURS, names, strict=False)
    ]
    line = Text()
    for entry in [*entries, *map(Text, map(printable, remarks))]:
        if line and line.cell_len + entry.cell_len + 2 > width:
            yield line
            line = Text()
        line = Text(" ") + entry if not line else line + Text("  ") + entry
    yield line

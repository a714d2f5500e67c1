"""Test the plots of a terminal: their width, their marks, and where the marks stand."""

import pytest
from rich.cells import cell_len

from compare.report.axes import SHARE, count_axis
from compare.report.formats.plot import plot
from compare.report.pictures import Chart, Point


def a_chart(*lines):
    """Return a chart of lines, each with its share of the ideal at 1, 2 and 4 ranks."""
    points = [
        (f"arm{number}", Point(ranks, share, share * 0.7, share * 1.1, ranks == 4))
        for number, shares in enumerate(lines)
        for ranks, share in zip((1, 2, 4), shares, strict=False)
    ]
    axis = count_axis((1, 2, 4), "rank")
    return Chart.of(points, key="k", heading="h", caption="c", x_axis=axis, y_axis=SHARE)


def drawn(chart, width=80):
    return [line.plain for line in plot(chart, width)]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_plot_fits_the_terminal(width):
    widths = [cell_len(line) for line in drawn(a_chart((1.0, 0.9, 0.8), *[(1.0, 0.5, 0.1)] * 20), width)]
    assert min(width, 120) - 4 <= max(widths) <= min(width, 120)


def test_plot_marks_points_and_lines_but_no_intervals():
    lines = drawn(a_chart((1.0, 0.9, 0.8), (0.9, 0.5, 0.1)))
    text = "\n".join(lines)
    assert text.count("●") == text.count("▲") == 3, "two points and the legend"
    heights = {mark: next(row for row, line in enumerate(lines) if mark in line) for mark in "○△"}
    assert heights["○"] < heights["△"]
    column = lines[heights["○"]].index("○")
    assert {line[column] for line in lines[1:-4] if len(line) > column} <= set("○△ ")
    assert "100 % ┤" in text
    assert "share of the ideal speed" in lines[0]
    assert lines[-2].strip() == "number of ranks (logarithmic)"
    assert lines[-3].split() == ["1", "2", "4"]
    assert "several" not in text


def test_plot_draws_four_lines_and_names_the_others():
    lines = drawn(a_chart(*[(1.0, 0.9 - 0.1 * number, 0.1) for number in range(6)]))
    assert " ".join(lines[-1].split()) == "● arm0 ▲ arm1 ■ arm2 ◆ arm3 * several not drawn: arm4, arm5"


def test_plot_names_marks_that_coincide():
    lines = drawn(a_chart((1.0, 0.9, 0.8), (1.0, 0.5, 0.1)))
    assert sum("*" in line for line in lines[:-1]) == 1
    assert lines[-1].split() == ["●", "arm0", "▲", "arm1", "*", "several"]


def test_plot_needs_room_and_two_points():
    assert drawn(a_chart((1.0, 0.9, 0.8)), 59) == []
    assert drawn(a_chart((1.0,), (0.9,))) == []

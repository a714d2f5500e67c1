"""Render the first table, which fits 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from compare.analysis import Analysis
from compare.analysis.summary import ArmSummary
from compare.report.causes import main_cause
from compare.report.columns import BELOW_NOISE, against_baseline
from compare.report.headline import shared_options, short_headline
from compare.report.noise import would_have_seen
from compare.report.notes import noise_first, warnings
from compare.report.rows import printable_line
from compare.report.sentences import MARK, conclusion, marks, proof, why_marked
from compare.schema.arms import Arm
from compare.schema.results import Run
from compare.text import printable

BAR_CELLS = 8
_NARROWEST_WITH_BAR = 72
_SHORTEST_NAME = 12
_GAP = "  "
_HEADINGS = ("step ms", "of it sync")


class Row(NamedTuple):
    """The cells of one arm; the name is cut later."""

    name: str
    step: str
    sync: str
    against: str
    style: str


def lines(run: Run, analysis: Analysis, width: int, *, again: str) -> Iterator[Text]:
    """Write the lines of the first table, the conclusion last.

    ``again`` is the argument of ``compare report`` that shows the run again.
    """
    summary = analysis.summary
    first = noise_first(run, summary)
    yield from (printable_line(noise, "bold yellow") for noise in first)
    yield printable_line(short_headline(run, summary), "bold")
    yield Text()
    if summary.arms:
        yield from _table(run, analysis, width)
        yield Text()
    yield from (
        printable_line(warning, "bold yellow") for warning in warnings(run, analysis) if warning not in first
    )
    yield from map(printable_line, [*marks(run, summary), *would_have_seen(summary)])
    if why := main_cause(analysis, run.config.baseline):
        yield printable_line(why)
    yield from map(printable_line, proof(run, summary))
    yield printable_line(f"More: compare report {again} --wide, or --detail", "dim")
    yield printable_line(conclusion(run, analysis), "bold")


# ---- the table ----


def _table(run: Run, analysis: Analysis, width: int) -> Iterator[Text]:
    """Give each arm a line; its name takes what the figures leave."""
    bar = BAR_CELLS if width >= _NARROWEST_WITH_BAR else 0
    rows = [_row(run, analysis, arm, bar) for arm in analysis.summary.arms]
    columns = list(zip(*(row[1:4] for row in rows), strict=True))
    headings = [*_HEADINGS, f"against {_short(run.config.baseline)}"]
    widths = [max(map(cell_len, [heading, *cells])) for heading, cells in zip(headings, columns, strict=True)]
    left = width - 1 - sum(widths) - len(_GAP) * len(widths)
    names = [row.name for row in rows]
    longest = max(cell_len(name) for name in [*names, "arm"])
    room = max(_SHORTEST_NAME, min(longest, left))
    cut = [cut_in_the_middle(name, room) for name in names]
    same = {name for name, count in Counter(cut).items() if count > 1}
    yield printable_line(_join("arm", headings, room, widths), "dim")
    for row, name in zip(rows, cut, strict=True):
        if name in same:  # what tells the arms apart was cut: the name takes lines of its own
            yield printable_line(f" {row.name}", row.style)
        yield printable_line(_join("" if name in same else name, row[1:4], room, widths), row.style)


def _join(name: str, cells: tuple[str, ...] | list[str], room: int, widths: list[int]) -> str:
    step, sync, against = cells
    right = step.rjust(widths[0])
    line = [set_cell_size(name, room), right, set_cell_size(sync, widths[1]), against]
    return (" " + _GAP.join(line)).rstrip()


def _row(run: Run, analysis: Analysis, own: ArmSummary, bar: int) -> Row:
    arm = next(arm for arm in run.config.arms if arm.label == own.arm)
    style = "bold green" if own.fastest else "dim" if not arm.synchronises else ""
    step = f"{own.step_seconds.mean * 1e3:.2f}"
    return Row(_name(run, arm), step, _sync(own, bar), against_baseline(run, analysis.summary, own), style)


def _name(run: Run, arm: Arm) -> str:
    """Return an arm's label without shared options, with its mark."""
    if not arm.synchronises:
        return f"{arm.label} (no communication)"
    shared = shared_options(run)
    given = {name: value for name, value in arm.given.items() if not shared or name not in shared.given}
    mark = f" {MARK}" if why_marked(arm) else ""
    return printable(msgspec.structs.replace(arm, given=given).label) + mark


def _short(baseline: str) -> str:
    return baseline if cell_len(baseline) <= _SHORTEST_NAME else "baseline"


def _sync(arm: ArmSummary, cells: int) -> str:
    """Draw the share of the sync cost, with its figure."""
    if arm.sync_share is None:
        return " " * (cells + 3) + "–"
    if arm.below_noise:
        return BELOW_NOISE
    share = arm.sync_share.mean
    bar = "█" * max(1, round(share * cells)) if cells else ""
    return f"{bar:<{cells}}{share * 100:4.0f} %"


def cut_in_the_middle(name: str, width: int) -> str:
    """Shorten a name to a width, and keep both of its ends."""
    if cell_len(name) <= width:
        return name
    tail = (width - 1) // 2
    end = name[-tail:] if tail else ""
    while cell_len(end) > tail:
        end = end[1:]
    return set_cell_size(name, width - 1 - cell_len(end)) + "…" + end

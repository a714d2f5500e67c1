"""Render a history: a line for each run, then trends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from compare.analysis.history import History, RunEntry, Trend
from compare.report.brief import cut_in_the_middle
from compare.text import counted, printable

_BARS = "▁▂▃▄▅▆▇█"
_NEWEST = 24
"""Maximum number of bars of a trend."""
_NAME_CELLS = 34
"""Maximum width of a name."""
_ARM_CELLS = 26


def table(history: History) -> str:
    """Render a history, within 80 columns unless a run has many arms."""
    room = min(_NAME_CELLS, max((cell_len(_one_line(entry.name)) for entry in history.runs), default=0))
    lines = [*(_line(entry, room) for entry in history.runs), *_trends(history.trends)]
    lines += [f"{_one_line(name)}: not read. {why}" for name, why in history.unread.items()]
    return "\n".join(printable(line).rstrip() for line in lines)


def _line(entry: RunEntry, room: int) -> str:
    """Write one run, with the step of each arm."""
    name = set_cell_size(cut_in_the_middle(_one_line(entry.name), room), room)
    state = "" if entry.state == "complete" else f", {entry.state}"
    times = ", ".join(f"{arm} {seconds * 1e3:.2f}" for arm, seconds in entry.step_seconds.items())
    started = entry.started_at[:16].replace("T", " ")
    return f"{started}  {name}  {counted(entry.rounds, 'round')}{state}: {times or 'no launch'}"


def _trends(trends: Sequence[Trend]) -> Iterator[str]:
    group = None
    for trend in trends:
        if trend.group != group:
            group = trend.group
            yield ""
            yield f"Step in ms, oldest to newest: {group}"
        arm = set_cell_size(cut_in_the_middle(trend.arm, _ARM_CELLS), _ARM_CELLS)
        first, last = trend.step_seconds[0] * 1e3, trend.step_seconds[-1] * 1e3
        bars = set_cell_size(bars_of(trend.step_seconds[-_NEWEST:]), _NEWEST)
        yield f"  {arm} {bars} {first:.2f} → {last:.2f}"


def bars_of(values: Sequence[float]) -> str:
    """Draw values as bars between their minimum and maximum."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1))] for value in values)


def _one_line(name: str) -> str:
    """Escape the line breaks of a name as well."""
    return name.replace("\n", "\\n")

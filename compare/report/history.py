"""Render a history: a line for each run, then trends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

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
_WIDTH = 80
_TIE = "\u00a0"
"""Space at which no line ends: between an arm and its step."""


def table(history: History) -> str:
    """Render a history within 80 columns."""
    titles = [_title(entry) for entry in history.runs]
    room = max(map(cell_len, titles), default=0)
    lines = [
        line
        for title, entry in zip(titles, history.runs, strict=True)
        for line in _lines(set_cell_size(title, room), entry)
    ]
    lines += _trends(history.trends)
    for name, why in history.unread.items():
        lines += _wrapped(f"{_one_line(name)}: not read. {why}")
    return "\n".join(printable(line).rstrip() for line in lines)


def _title(entry: RunEntry) -> str:
    """Write when a run started, and its name."""
    name = cut_in_the_middle(_one_line(entry.name), _NAME_CELLS)
    if name.startswith(entry.started_at[:10]):  # a folder that no --output named
        return name
    return f"{entry.started_at[:16].replace('T', ' ')}  {name}"


def _lines(title: str, entry: RunEntry) -> list[str]:
    """Write one run with its arms' steps, on further lines where needed."""
    state = "" if entry.state == "complete" else f", {entry.state}"
    times = ", ".join(f"{arm}{_TIE}{seconds * 1e3:.2f}" for arm, seconds in entry.step_seconds.items())
    found = f"{times} ms" if times else "no launch"
    line = f"{title}  {counted(entry.rounds, 'round')}{state}: {found}"
    return [part.replace(_TIE, " ") for part in _wrapped(line)]


def _wrapped(line: str) -> list[str]:
    return wrap(line, _WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


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

"""Render a history as text: a line for each run, then the trends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from compare.analysis.history import History, RunEntry, Trend
from compare.report.cells import cut_in_the_middle
from compare.text import counted, printable

_BARS = "▁▂▃▄▅▆▇█"
_NEWEST = 20
"""Maximum number of bars of a trend, one for each of its newest runs."""
_TITLE_CELLS = 38
"""Maximum width in cells of a run's start and name."""
_STATE_CELLS = 12
_ARM_CELLS = 22
_WIDTH = 80
_MORE = " …"
_TIE = "\u00a0"
"""Space at which no line is broken; it stands within one setting of a group."""


def table(history: History) -> str:
    """Return the runs, the trends, and the runs that could not be read, in lines of at most 80 cells.

    The text is empty if the history is.
    """
    titles = [_title(entry) for entry in history.runs]
    room = max(map(cell_len, titles), default=0)
    lines = [
        _line(set_cell_size(title, room), entry) for title, entry in zip(titles, history.runs, strict=True)
    ]
    lines += _trends(history.trends)
    for name, why in history.unread.items():
        shown = cut_in_the_middle(_one_line(name), _TITLE_CELLS)
        lines += _wrapped(f"{shown}: not read. {_one_line(why)}")
    return "\n".join(line.rstrip() for line in lines)


def _title(entry: RunEntry) -> str:
    """Return when a run started, and its name; only the name if it begins with the date."""
    name = _one_line(entry.name)
    if name.startswith(entry.started_at[:10]):  # a folder that no --output named
        return cut_in_the_middle(name, _TITLE_CELLS)
    start = cut_in_the_middle(_one_line(entry.started_at[:16].replace("T", " ")), 16)
    return f"{start}  {cut_in_the_middle(name, _TITLE_CELLS - cell_len(start) - 2)}"


def _line(title: str, entry: RunEntry) -> str:
    """Return the line of one run, with the step times in ms of as many arms as fit."""
    state = "" if entry.state == "complete" else cut_in_the_middle(_one_line(entry.state), _STATE_CELLS)
    noisy = entry.noisy_rounds
    noise = f"{noisy} noisy" if noisy else "all noise" if entry.noise_hides_all else ""
    line = f"{title}  {', '.join(filter(None, [counted(entry.rounds, 'round'), state, noise]))}:"
    if not entry.step_seconds:
        return f"{line} no launch"
    arms = [
        f"{cut_in_the_middle(_one_line(arm), _ARM_CELLS)} {seconds * 1e3:.2f}"
        for arm, seconds in entry.step_seconds.items()
    ]
    for count in range(len(arms), 0, -1):
        full = f"{line} {', '.join(arms[:count])} ms{_MORE if count < len(arms) else ''}"
        if cell_len(full) <= _WIDTH:
            return full
    return cut_in_the_middle(f"{line}{_MORE}", _WIDTH)


def _wrapped(line: str) -> Iterator[str]:
    """Yield the parts of a line that is broken between words, each at most 80 cells wide."""
    kept = ""
    for word in (cut_in_the_middle(word, _WIDTH - 4) for word in line.split(" ")):
        if kept and cell_len(f"{kept} {word}") > _WIDTH:
            yield kept
            kept = f"    {word}"
        else:
            kept = f"{kept} {word}" if kept else word
    yield kept


def _trends(trends: Sequence[Trend]) -> Iterator[str]:
    if trends:
        yield from ("", "Step in ms, oldest to newest")
    group = None
    for trend in trends:
        if trend.group != group:
            group = trend.group
            tied = (_one_line(part).replace(" ", _TIE) for part in group.split(" · "))
            yield from ("", *(line.replace(_TIE, " ") for line in _wrapped(" · ".join(tied))))
        arm = set_cell_size(cut_in_the_middle(_one_line(trend.arm), _ARM_CELLS), _ARM_CELLS)
        first, last = trend.step_seconds[0] * 1e3, trend.step_seconds[-1] * 1e3
        bars = set_cell_size(_bars(trend.step_seconds[-_NEWEST:]), _NEWEST)
        noisy = f", {trend.noisy} of {len(trend.step_seconds)} noisy" if trend.noisy else ""
        yield f"  {arm} {bars} {first:.2f} → {last:.2f}{noisy}"


def _bars(values: Sequence[float]) -> str:
    """Return a bar for each value, scaled between the minimum and the maximum of all."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1))] for value in values)


def _one_line(text: str) -> str:
    """Return the text with control characters and line breaks escaped."""
    return printable(text).replace("\n", "\\n")

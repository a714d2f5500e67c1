"""Make the document of a folder's runs: a row for each run, then the trend of every arm."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from compare.analysis.runs import History, RunEntry, Trend
from compare.report.document import Column, Document, Table
from compare.text import counted

_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 20
"""Maximum number of bars of a trend; each stands for a run, and the newest runs are shown."""


def document_of(history: History, folder: str) -> Document:
    """Return the document of the runs in ``folder``, with a table of trends for each group of like runs."""
    tables = [Table.of(_RUN_COLUMNS, history.runs, is_prose=True)] if history.runs else []
    for group, trends in groupby(history.trends, lambda trend: trend.group):
        tables.append(Table.of(_TREND_COLUMNS, trends, title=f"Step in ms, oldest to newest: {group}"))
    others = sorted(history.others.items())
    if others:
        tables.append(Table.of(_OTHER_COLUMNS, others, title="Other results, each with a report of its own"))
    counts = [counted(len(history.runs), "run"), *([counted(len(others), "other result")] if others else [])]
    return Document(
        title=f"{' and '.join(counts)} in {folder}",
        tables=tables,
        warnings=[f"{_one_line(name)}: not read. {why}" for name, why in history.unread.items()],
        content=lambda: history,
    )


def _one_line(name: str) -> str:
    return name.replace("\n", "\\n")


def _dated_name(entry: RunEntry) -> str:
    """Return the time at which a run started and its name, or only a name that begins with the date."""
    name = _one_line(entry.name)
    start = entry.started_at[:16].replace("T", " ")
    return name if name.startswith(start[:10]) else f"{start}  {name}"


def _rounds(entry: RunEntry) -> str:
    """Return the cell with a run's number of rounds, its state if it is not complete, and its noise."""
    state = "" if entry.state == "complete" else entry.state
    noise = "open" if entry.noise_hides_all else ""
    noisy = f"{entry.noisy_rounds} noisy" if entry.noisy_rounds else noise
    return ", ".join(filter(None, [counted(entry.rounds, "round"), state, noisy]))


def _steps(entry: RunEntry) -> str:
    means = (f"{arm} {seconds * 1e3:.2f}" for arm, seconds in entry.step_seconds.items())
    return ", ".join(means) or "no launch"


def _bars(values: Sequence[float]) -> str:
    """Return one bar character for each value, from the lowest bar for the minimum to the highest."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1))] for value in values)


_RUN_COLUMNS: tuple[Column[RunEntry], ...] = (
    Column("run", _dated_name, is_text=True),
    Column("rounds", _rounds, is_text=True),
    Column("step ms", _steps, is_text=True),
)
_OTHER_COLUMNS: tuple[Column[tuple[str, str]], ...] = (
    Column("result", lambda other: _one_line(other[0]), is_text=True),
    Column("what it is", lambda other: other[1], is_text=True),
)
_TREND_COLUMNS: tuple[Column[Trend], ...] = (
    Column("arm", lambda trend: trend.arm, is_text=True),
    Column("newest runs", lambda trend: _bars(trend.step_seconds[-_MOST_BARS:]), is_text=True),
    Column("oldest", lambda trend: f"{trend.step_seconds[0] * 1e3:.2f}"),
    Column("newest", lambda trend: f"{trend.step_seconds[-1] * 1e3:.2f}"),
    Column("noisy", lambda trend: f"{trend.noisy} of {len(trend.step_seconds)}" if trend.noisy else ""),
)

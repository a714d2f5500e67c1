"""Render ``compare collectives``: a table, Markdown, CSV and JSON."""

from __future__ import annotations

import csv as csv_format
import io
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from compare.analysis.collectives import GroupAtSize, all_reduce_factor
from compare.report.table import plain
from compare.schema.collectives import CollectivesRun
from compare.schema.hosts import rehearsed_on
from compare.text import counted, listed

Rows = Sequence[GroupAtSize]
_WIDE_SHARE = 0.10
"""Cells with a wider spread are marked."""
_WHOLE_FROM = 1000
"""Microseconds from which no decimal is shown."""


class SweepTable:
    """Groups side by side, or one table per group.

    There is one row per size. A narrow terminal shows several tables, one below the other.
    """

    def __init__(self, run: CollectivesRun, rows: Rows, *, detail: bool = False) -> None:
        self.run = run
        self.rows = rows
        self.detail = detail

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(headline(self.run), style="bold")
        if self.detail:
            for group, rows in groupby(self.rows, lambda row: row.group):
                yield Text(group, style="bold")
                yield _table(full_columns(), [[row] for row in rows])
        else:
            yield from self._side_by_side(console, options)
        yield from (Text(line, style="bold yellow") for line in warnings(self.run, self.rows))
        yield from (Text(line, style="dim") for line in notes(self.run))

    def _side_by_side(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        unlimited = options.update(max_width=10_000)
        groups = list(self.run.config.groups)
        while groups:
            count = len(groups)
            while count > 1:
                width = Measurement.get(console, unlimited, self._table_of(groups[:count])).maximum
                if width <= options.max_width:
                    break
                count -= 1
            yield self._table_of(groups[:count])
            groups = groups[count:]

    def _table_of(self, groups: Sequence[str]) -> Table:
        return _table(side_columns(groups), by_size(self.rows, groups))


class Column(NamedTuple):
    """A column, and its cell for the groups of one size."""

    heading: str
    cell: Callable[[Sequence[GroupAtSize]], str]


_SIZE = Column("size\n(B)", lambda rows: str(rows[0].message_bytes))


def side_columns(groups: Sequence[str]) -> list[Column]:
    """Return size, each group's time and busbw, and all wrong elements."""
    columns = [column for index, group in enumerate(groups) for column in _columns_of(index, group)]
    return [_SIZE, *columns, Column("\n#wrong", _wrong)]


def _columns_of(index: int, group: str) -> list[Column]:
    return [
        Column(f"{group}\nus", lambda rows: _time(rows[index])),
        Column("\nGB/s", lambda rows: _bandwidth(rows[index].bus_bandwidth)),
    ]


def full_columns() -> list[Column]:
    """Return the columns of nccl-tests, of one group."""
    return [
        _SIZE,
        Column("count", lambda rows: str(rows[0].count)),
        Column("type", lambda rows: rows[0].dtype),
        Column("redop", lambda rows: rows[0].operation),
        Column("time\n(us)", lambda rows: _time(rows[0])),
        Column("min\n(us)", lambda rows: _microseconds(rows[0].seconds.minimum) if rows[0].seconds else "–"),
        Column("algbw\n(GB/s)", lambda rows: _bandwidth(rows[0].algorithm_bandwidth)),
        Column("busbw\n(GB/s)", lambda rows: _bandwidth(rows[0].bus_bandwidth)),
        Column("#wrong", _wrong),
    ]


def by_size(rows: Rows, groups: Sequence[str]) -> list[list[GroupAtSize]]:
    """Return the rows of some groups, a list for each size."""
    return [list(its) for its in zip(*([r for r in rows if r.group == g] for g in groups), strict=True)]


def headline(run: CollectivesRun) -> str:
    """Describe in one line what was measured."""
    config = run.config
    hosts = [f"{len(run.hosts)} hosts over {run.network.interface}"] if len(run.hosts) > 1 else []
    hosts = [rehearsed_on(run.network, run.hosts)] if run.network.rehearsed else hosts
    launches = "1 launch" if config.rounds == 1 else f"{config.rounds} launches"
    parts = [
        f"{config.collective} {config.dtype} {config.operation}",
        f"{counted(config.ranks, 'rank')} × {counted(config.threads_per_rank, 'thread')}",
        *hosts,
        config.device,
        f"{launches} × {counted(config.iterations, 'iteration')}",
    ]
    return " · ".join(parts)


def warnings(run: CollectivesRun, rows: Rows) -> Iterator[str]:
    """List wrong sums, refusals, and what did not run."""
    if not run.complete:
        yield "INCOMPLETE: it was stopped before every group had run."
    for group in run.config.groups:
        wrong = [row for row in rows if row.group == group and row.wrong]
        if wrong:
            sizes = listed(str(row.message_bytes) for row in wrong)
            yield f"WRONG SUMS: {group} at {sizes} bytes. Do not use its figures."
        refused = [row for row in rows if row.group == group and row.status == "refused"]
        for reason, its in groupby(refused, lambda row: row.problem):
            sizes = listed(str(row.message_bytes) for row in its)
            yield f"REFUSED: {group} at {sizes} bytes: {reason}"
    yield from (f"FAILED: {failure.message}" for failure in run.failures)
    ranks, threads = run.config.ranks, run.config.threads_per_rank
    cores = max(run.cores_by_host) if run.network.rehearsed else sum(run.cores_by_host)
    if ranks * threads > cores:
        yield (
            f"{counted(ranks, 'rank')} × {counted(threads, 'thread')} share {counted(cores, 'core')}: "
            "ranks wait for cores, so times say little."
        )
    for group, reason in run.left_out.items():
        yield f"{group} did not run: {reason}"


def notes(run: CollectivesRun) -> Iterator[str]:
    """Explain the columns."""
    yield (
        "us: time of a call on the slowest rank, median of all iterations. ±: half of the distance of the "
        f"quartiles; ! marks more than {_WIDE_SHARE:.0%}."
    )
    factor = all_reduce_factor(run.config.ranks)
    yield (
        f"GB/s: bus bandwidth, size / time × 2 (n − 1) / n = {factor:.4g}, in 10⁹ bytes a second. #wrong: "
        "elements, in a further call at each size, of data that depends on the rank."
    )


def _table(columns: Sequence[Column], rows: Sequence[Sequence[GroupAtSize]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column.heading, justify="right", overflow="fold")
    for its in rows:
        style = "red" if any(row.wrong for row in its) else None
        table.add_row(*(Text(column.cell(its)) for column in columns), style=style)
    return table


def _time(row: GroupAtSize) -> str:
    if row.seconds is None:
        return row.status
    share = row.seconds.share
    return f"{_microseconds(row.seconds.median)} ±{share * 100:2.0f}%{'!' if share > _WIDE_SHARE else ' '}"


def _microseconds(seconds: float) -> str:
    microseconds = seconds * 1e6
    return f"{microseconds:.{1 if microseconds < _WHOLE_FROM else 0}f}"


def _bandwidth(bytes_per_second: float | None) -> str:
    return "–" if bytes_per_second is None else f"{bytes_per_second / 1e9:.2f}"


def _wrong(rows: Sequence[GroupAtSize]) -> str:
    known = [row.wrong for row in rows if row.wrong is not None]
    return str(sum(known)) if known else "–"


def table(run: CollectivesRun, rows: Rows, *, detail: bool = False) -> str:
    """Render the table without colours, in one piece."""
    return plain(SweepTable(run, rows, detail=detail))


def markdown(run: CollectivesRun, rows: Rows, *, detail: bool = False) -> str:
    """Render groups side by side as Markdown."""
    del detail
    columns = side_columns(run.config.groups)
    headings = [column.heading.replace("\n", " ").strip() for column in columns]
    lines = [headings, ["--:"] * len(columns)]
    lines += [[column.cell(its).strip() for column in columns] for its in by_size(rows, run.config.groups)]
    parts = [f"**{headline(run)}**", "", *("| " + " | ".join(line) + " |" for line in lines), ""]
    parts += [f"- **{line}**" for line in warnings(run, rows)] + [f"- {line}" for line in notes(run)]
    return "\n".join(parts)


def csv(run: CollectivesRun, rows: Rows, *, detail: bool = False) -> str:
    """Render one line per group and size, in seconds and bytes."""
    del run, detail
    out = io.StringIO()
    flat = [_flat(row) for row in rows]
    writer = csv_format.DictWriter(out, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue().rstrip("\n")


def _flat(row: GroupAtSize) -> dict[str, object]:
    fields = msgspec.structs.asdict(row)
    spread = fields.pop("seconds")
    of_spread = ("median", "low", "high", "minimum", "n")
    return fields | {f"seconds_{name}": getattr(spread, name, None) for name in of_spread}


def json(run: CollectivesRun, rows: Rows, *, detail: bool = False) -> str:
    """Render ``{"figures": …, "run": …}``."""
    del detail
    content = msgspec.json.encode({"figures": list(rows), "run": run})
    return msgspec.json.format(content, indent=1).decode()


SWEEP_RENDERERS: dict[str, Callable[..., str]] = {
    "table": table,
    "markdown": markdown,
    "csv": csv,
    "json": json,
}
"""The formats; each takes a run, its figures and ``detail``."""

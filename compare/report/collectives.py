"""Render ``compare collectives``: a table, Markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table

from compare.analysis.collectives import GroupAtSize, bus_factor, why_no_forms
from compare.report.copies import refused_copies
from compare.report.rows import csv_text, markdown_rows, markdown_text, printable_line
from compare.report.table import plain
from compare.schema.collectives import CollectivesRun, Exchange
from compare.schema.files import json_text
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
        yield printable_line(headline(self.run), "bold")
        for exchange, rows in by_exchange(self.run, self.rows):
            yield printable_line(str(exchange), "bold")
            if self.detail:
                for group, its in groupby(rows, lambda row: row.group):
                    yield printable_line(group, "bold")
                    yield _table(full_columns(), [[row] for row in its])
            else:
                yield from self._side_by_side(rows, console, options)
        yield from (printable_line(line, "bold yellow") for line in warnings(self.run, self.rows))
        yield from (printable_line(line, "dim") for line in notes(self.run, self.rows))

    def _side_by_side(self, rows: Rows, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        unlimited = options.update(max_width=10_000)
        groups = list(self.run.config.groups)
        while groups:
            count = len(groups)
            while count > 1:
                width = Measurement.get(console, unlimited, self._table_of(rows, groups[:count])).maximum
                if width <= options.max_width:
                    break
                count -= 1
            yield self._table_of(rows, groups[:count])
            groups = groups[count:]

    def _table_of(self, rows: Rows, groups: Sequence[str]) -> Table:
        return _table(side_columns(self.run, groups), by_size(rows, groups))


class Column(NamedTuple):
    """A column, and its cell for the groups of one size."""

    heading: str
    cell: Callable[[Sequence[GroupAtSize]], str]


_SIZE = Column("size\n(B)", lambda rows: str(rows[0].message_bytes))


def side_columns(run: CollectivesRun, groups: Sequence[str]) -> list[Column]:
    """Return size, each group's figures, and all wrong elements.

    The figures are time and busbw, and over hosts wire and form.
    """
    over_hosts = len(run.hosts) > 1
    columns = [
        column
        for index, group in enumerate(groups)
        for column in (*_columns_of(index, group), *(_wire_columns_of(index) if over_hosts else ()))
    ]
    return [_SIZE, *columns, Column("\n#wrong", _wrong)]


def _columns_of(index: int, group: str) -> list[Column]:
    return [
        Column(f"{group}\nus", lambda rows: _time(rows[index])),
        Column("\nGB/s", lambda rows: _bus(rows[index])),
    ]


def _wire_columns_of(index: int) -> list[Column]:
    return [
        Column("\nwire", lambda rows: _wire(rows[index])),
        Column("\nform", lambda rows: _first_form(rows[index])),
    ]


def full_columns() -> list[Column]:
    """Return the columns of nccl-tests, of one group, with wire and forms."""
    return [
        _SIZE,
        Column("count", lambda rows: str(rows[0].count)),
        Column("type", lambda rows: rows[0].dtype),
        Column("redop", lambda rows: rows[0].operation),
        Column("root", lambda rows: str(rows[0].root)),
        Column("time\n(us)", lambda rows: _time(rows[0])),
        Column("min\n(us)", lambda rows: _microseconds(rows[0].seconds.minimum) if rows[0].seconds else "–"),
        Column("algbw\n(GB/s)", lambda rows: _bandwidth(rows[0].algorithm_bandwidth)),
        Column("busbw\n(GB/s)", lambda rows: _bus(rows[0])),
        Column("#wrong", _wrong),
        Column("wire", lambda rows: _wire(rows[0])),
        Column("forms", lambda rows: ", ".join(rows[0].forms) or "–"),
    ]


def by_exchange(run: CollectivesRun, rows: Rows) -> Iterator[tuple[Exchange, list[GroupAtSize]]]:
    """Return the rows of each exchange, which stand together in order."""
    del run
    for (collective, dtype, operation), its in groupby(rows, lambda r: (r.collective, r.dtype, r.operation)):
        yield Exchange(collective, dtype, operation), list(its)


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
        f"{counted(config.ranks, 'rank')} × {counted(config.threads_per_rank, 'thread')}",
        *hosts,
        config.device,
        f"{launches} × {counted(config.iterations, 'iteration')}",
    ]
    return " · ".join(parts)


def warnings(run: CollectivesRun, rows: Rows) -> Iterator[str]:
    """List wrong results, refusals, and what did not run."""
    if not run.complete:
        yield "INCOMPLETE: it was stopped before its last launch."
    for exchange, its in by_exchange(run, rows):
        for group in run.config.groups:
            of_group = [row for row in its if row.group == group]
            if wrong := [row for row in of_group if row.wrong]:
                sizes = listed(str(row.message_bytes) for row in wrong)
                yield f"WRONG RESULTS: {group}, {exchange} at {sizes} bytes. Do not use its figures."
            refused = [row for row in of_group if row.status == "refused"]
            for reason, such in groupby(refused, lambda row: row.problem):
                yield f"REFUSED: {group}, {exchange}{_at_sizes(list(such), of_group)}: {reason}"
    yield from (f"FAILED: {failure.message}" for failure in run.failures)
    yield from refused_copies(
        {la.group: [rank.attestation for rank in la.ranks] for la in run.launches},
    )
    ranks, threads = run.config.ranks, run.config.threads_per_rank
    cores = max(run.cores_by_host) if run.network.rehearsed else sum(run.cores_by_host)
    if ranks * threads > cores:
        yield (
            f"{counted(ranks, 'rank')} × {counted(threads, 'thread')} share {counted(cores, 'core')}: "
            "ranks wait for cores, so times say little."
        )
    for group, reason in run.left_out.items():
        yield f"{group} did not run: {reason}"


def _at_sizes(some: Rows, all_rows: Rows) -> str:
    return "" if len(some) == len(all_rows) else f" at {listed(str(r.message_bytes) for r in some)} bytes"


def notes(run: CollectivesRun, rows: Rows) -> Iterator[str]:
    """Explain the columns."""
    yield (
        "us: time of a call on the slowest rank, median of all iterations. ±: half of the distance of the "
        f"quartiles; ! marks more than {_WIDE_SHARE:.0%}."
    )
    factors = (f"{name} {bus_factor(name, run.config.ranks):.4g}" for name in run.config.collectives)
    yield (
        f"GB/s: bus bandwidth, size / time × the factor of nccl-tests ({', '.join(factors)}), in 10⁹ bytes a "
        "second. #wrong: elements, in a further call at each size, of data that depends on the rank."
    )
    if free := [name for name in run.config.collectives if name in {"broadcast", "reduce", "send_recv"}]:
        yield (
            f"{listed(free)}: ranks do not wait for all others. So the time of calls in a row is the "
            "inverse of a throughput."
        )
    reason = why_no_forms(run)
    if len(run.hosts) > 1:
        yield (
            "wire: bytes that the busiest host sent/received in a call, over the size. The kernel counted "
            "them on the interface, with packet headers."
        )
        yield (
            f"form: – because {reason}."
            if reason
            else "form: an algorithm whose bytes fit the wire, from 64 KiB. +: so many others fit too; "
            "--detail names them."
        )
    else:
        yield f"wire and forms: – because {reason}."
    if any(row.other_form for row in rows):
        yield (
            "*: the wire carried more than bus bandwidth supposes, so another form ran. The busiest link "
            "carried wire × size / time."
        )


def _table(columns: Sequence[Column], rows: Sequence[Sequence[GroupAtSize]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column.heading, justify="right", overflow="fold")
    for its in rows:
        style = "red" if any(row.wrong for row in its) else None
        table.add_row(*(printable_line(column.cell(its)) for column in columns), style=style)
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


def _bus(row: GroupAtSize) -> str:
    return _bandwidth(row.bus_bandwidth) + ("*" if row.other_form else "")


def _wire(row: GroupAtSize) -> str:
    return f"{row.wire.sent:.2f}/{row.wire.received:.2f}" if row.wire else "–"


def _first_form(row: GroupAtSize) -> str:
    more = f" +{len(row.forms) - 1}" if len(row.forms) > 1 else ""
    return f"{row.forms[0]}{more}" if row.forms else "–"


def _wrong(rows: Sequence[GroupAtSize]) -> str:
    known = [row.wrong for row in rows if row.wrong is not None]
    return str(sum(known)) if known else "–"


def table(run: CollectivesRun, rows: Rows, *, detail: bool = False) -> str:
    """Render the table without colours, in one piece."""
    return plain(SweepTable(run, rows, detail=detail))


def markdown(run: CollectivesRun, rows: Rows, *, detail: bool = False) -> str:
    """Render groups side by side as Markdown; with detail one by one."""
    parts = [f"**{headline(run)}**", ""]
    for exchange, its in by_exchange(run, rows):
        for groups in [[group] for group in run.config.groups] if detail else [run.config.groups]:
            columns = full_columns() if detail else side_columns(run, groups)
            lines = [
                [column.heading.replace("\n", " ").strip() for column in columns],
                ["--:"] * len(columns),
            ]
            lines += [[column.cell(same).strip() for column in columns] for same in by_size(its, groups)]
            title = f"{exchange}, {groups[0]}" if detail else str(exchange)
            parts += [f"**{title}**", "", *markdown_rows(lines), ""]
    parts += [f"- **{line}**" for line in warnings(run, rows)]
    return markdown_text(parts + [f"- {line}" for line in notes(run, rows)])


def csv(run: CollectivesRun, rows: Rows, *, detail: bool = False) -> str:
    """Render one line per group and size, in seconds and bytes."""
    del run, detail
    return csv_text([_flat(row) for row in rows])


def _flat(row: GroupAtSize) -> dict[str, object]:
    fields = msgspec.structs.asdict(row)
    spread, wire = fields.pop("seconds"), fields.pop("wire")
    fields["forms"] = "; ".join(row.forms)
    fields |= {f"wire_{way}": getattr(wire, way, None) for way in ("sent", "received")}
    of_spread = ("median", "low", "high", "minimum", "n")
    return fields | {f"seconds_{name}": getattr(spread, name, None) for name in of_spread}


def json(run: CollectivesRun, rows: Rows, *, detail: bool = False) -> str:
    """Render ``{"figures": …, "run": …}``."""
    del detail
    return json_text({"figures": list(rows), "run": run})


SWEEP_RENDERERS: dict[str, Callable[..., str]] = {
    "table": table,
    "markdown": markdown,
    "csv": csv,
    "json": json,
}
"""The formats; each takes a run, its figures and ``detail``."""

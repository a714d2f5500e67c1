"""Make the document of ``compare collectives``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

import msgspec

from compare.analysis.collectives import GroupAtSize, bus_factor, summarise_sweeps, why_no_forms
from compare.report.copies import refused_copies
from compare.report.document import Attested, Column, Document, Table
from compare.report.made import facts_of
from compare.report.pictures.canvas import Picture
from compare.report.pictures.charts import BYTES, RATE, SECONDS, Point, draw_lines
from compare.schema.collectives import CollectivesRun, Exchange
from compare.schema.hosts import rehearsed_on
from compare.text import counted, listed

Rows: TypeAlias = Sequence[GroupAtSize]
_WIDE_SHARE = 0.10
"""Spread, as a share of the median, above which a time is marked."""
_WHOLE_FROM = 1000
"""Microseconds from which no decimal is shown."""


def document_of(run: CollectivesRun, *, detail: bool = False) -> Document:
    """Return the document of a sweep, with the groups side by side in each table.

    With ``detail``, each group has a table of its own, with every column of nccl-tests.
    """
    rows = summarise_sweeps(run)
    return Document(
        title=headline(run),
        tables=list(_tables(run, rows, detail=detail)),
        warnings=list(warnings(run, rows)),
        notes=list(notes(run, rows)),
        draw=lambda: list(_draw(run, rows)),
        facts=[
            *facts_of(run),
            *(
                (f"cores of {host.name}", str(n))
                for host, n in zip(run.hosts, run.cores_by_host, strict=True)
            ),
            ("network", run.network.interface or "loopback"),
        ],
        attested=[
            Attested(group, own[-1].launcher, own[-1].ranks[0].attestation)
            for group in run.config.groups
            if (own := [launch for launch in run.launches if launch.group == group])
        ],
        records=lambda: [_flat(row) for row in rows],
        content=lambda: {"figures": list(rows), "run": run},
    )


def _tables(run: CollectivesRun, rows: Rows, *, detail: bool) -> Iterator[Table]:
    for exchange, its in by_exchange(rows):
        for groups in [[group] for group in run.config.groups] if detail else [run.config.groups]:
            columns = full_columns() if detail else side_columns(run, groups)
            title = f"{exchange}, {groups[0]}" if detail else str(exchange)
            yield Table.of(
                columns,
                by_size(its, groups),
                title=title,
                style=lambda same: "bad" if any(row.wrong for row in same) else "",
            )


_SIZE: Column[Rows] = Column("size\n(B)", lambda rows: str(rows[0].message_bytes))


def side_columns(run: CollectivesRun, groups: Sequence[str]) -> list[Column[Rows]]:
    """Return the columns that show groups side by side.

    They are the size, then the time and bus bandwidth of each group, over several hosts also wire and form.
    The last is the number of wrong elements of all groups. A row lists the groups in the order of ``groups``.
    """
    over_hosts = len(run.hosts) > 1
    columns = [
        column
        for index, group in enumerate(groups)
        for column in (*_columns_of(index, group), *(_wire_columns_of(index, group) if over_hosts else ()))
    ]
    return [_SIZE, *columns, Column("\n#wrong", _wrong)]


def _columns_of(index: int, group: str) -> list[Column[Rows]]:
    return [
        Column(f"{group}\nus", lambda rows: _time(rows[index]), block=group),
        Column("\nGB/s", lambda rows: _bus(rows[index]), block=group),
    ]


def _wire_columns_of(index: int, group: str) -> list[Column[Rows]]:
    return [
        Column("\nwire", lambda rows: _wire(rows[index]), block=group),
        Column("\nform", lambda rows: _first_form(rows[index]), block=group),
    ]


def full_columns() -> list[Column[Rows]]:
    """Return the columns of nccl-tests for a single group, followed by wire and forms."""
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


def by_exchange(rows: Rows) -> Iterator[tuple[Exchange, list[GroupAtSize]]]:
    """Yield each exchange with its rows, which must stand together in ``rows``."""
    for (collective, dtype, operation), its in groupby(rows, lambda r: (r.collective, r.dtype, r.operation)):
        yield Exchange(collective, dtype, operation), list(its)


def by_size(rows: Rows, groups: Sequence[str]) -> list[Rows]:
    """Return a list for each size, which has the row of each group in the order of ``groups``."""
    return [list(its) for its in zip(*([r for r in rows if r.group == g] for g in groups), strict=True)]


def headline(run: CollectivesRun) -> str:
    """Return one line with the ranks, hosts, device, launches and iterations of a sweep."""
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
    """Yield a line for each wrong result, refusal and failure, for too few cores, and for missing groups."""
    if not run.complete:
        yield "INCOMPLETE: it was stopped before its last launch."
    for exchange, its in by_exchange(rows):
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
    """Yield the lines that explain the columns."""
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


def _flat(row: GroupAtSize) -> dict[str, object]:
    fields = msgspec.structs.asdict(row)
    spread, wire = fields.pop("seconds"), fields.pop("wire")
    fields["forms"] = "; ".join(row.forms)
    fields |= {f"wire_{way}": getattr(wire, way, None) for way in ("sent", "received")}
    of_spread = ("median", "low", "high", "minimum", "n")
    return fields | {f"seconds_{name}": getattr(spread, name, None) for name in of_spread}


# ---- pictures ----


def _draw(run: CollectivesRun, rows: Rows) -> Iterator[Picture]:
    """Yield two pictures of each exchange: time and bus bandwidth of every group over sizes."""
    for number, (exchange, its) in enumerate(by_exchange(rows), 1):
        of_group = {
            group: [row for row in its if row.group == group and row.message_bytes]
            for group in run.config.groups
        }
        times = {
            group: [
                Point(row.message_bytes, row.seconds.median, row.seconds.low, row.seconds.high)
                for row in own
                if row.seconds
            ]
            for group, own in of_group.items()
        }
        rates = {
            group: [Point(row.message_bytes, row.bus_bandwidth) for row in own if row.bus_bandwidth]
            for group, own in of_group.items()
        }
        yield from draw_lines(
            Picture(
                f"time-{number}",
                f"{exchange}: time of a call",
                "Median of all iterations on the slowest rank, with quartiles. Both axes are logarithmic.",
            ),
            times,
            BYTES,
            SECONDS,
        )
        yield from draw_lines(
            Picture(
                f"bandwidth-{number}",
                f"{exchange}: bus bandwidth",
                "Size over time, times the factor of nccl-tests. Both axes are logarithmic.",
            ),
            rates,
            BYTES,
            RATE,
        )

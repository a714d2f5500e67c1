"""Make the document of ``ringside collectives``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TypeAlias

import msgspec

from compare.analysis.budget import fullest_host
from compare.analysis.collectives import (
    GroupAtSize,
    bus_factor,
    noisy_rounds,
    quickest,
    summarise_sweeps,
    why_no_forms,
)
from compare.report.axes import BYTES, RATE, SECONDS
from compare.report.cells import format_figure, format_size
from compare.report.document import Attested, Column, Document, Table
from compare.report.origin import facts_of, noisy_rounds_warning, refused_copies, source_of
from compare.report.pictures import Chart, Picture, Point, draw_lines
from compare.schema.collectives import CollectivesRun, Exchange
from compare.schema.hosts import rehearsal_headline
from compare.text import counted, listed, numbered, percent

_Rows: TypeAlias = Sequence[GroupAtSize]
"""Figures of groups at some sizes: those of a table's row, of an exchange, or of the whole sweep."""
_WIDE_SHARE = 0.10
"""Spread of a time, as a share of its median, above which the time is marked with ``!``."""
_MOST_RANGES = 3
"""Most ranges of sizes that the conclusion names one by one; beyond, it counts sizes."""
_WHOLE_MICROSECONDS = 1000
"""Time from which microseconds are shown without a decimal."""


def document_of(run: CollectivesRun, *, detail: bool = False) -> Document:
    """Return the document of a sweep of collectives, with the groups side by side in each table.

    With ``detail``, each group has a table of its own, with every column of nccl-tests.
    """
    rows = summarise_sweeps(run)
    hosts_by_cores: dict[int, list[str]] = {}
    for host, cores in zip(run.hosts, run.cores_by_host, strict=True):
        hosts_by_cores.setdefault(cores, []).append(host.name)
    last_launches = {launch.group: launch for launch in run.launches}
    return Document(
        title=_headline(run),
        name=f"{listed(dict.fromkeys(run.config.collectives))} of {listed(run.config.groups)}",
        source=source_of(run, run, _headline(run)),
        tables=list(_tables(run, rows, detail=detail)),
        warnings=list(_warnings(run, rows)),
        notes=list(_notes(run, rows, detail=detail)),
        conclusion=_conclusion(run, rows),
        draw=lambda: _draw(rows),
        facts=[
            *facts_of(run),
            *((f"cores of {listed(names)}", str(cores)) for cores, names in hosts_by_cores.items()),
            ("network", run.network.interface or "loopback"),
        ],
        attested=[
            Attested(group, launch.launcher, launch.ranks[0].attestation)
            for group in run.config.groups
            if (launch := last_launches.get(group))
        ],
        records=lambda: [_record(row) for row in rows],
        content=lambda: {"figures": list(rows), "run": run},
    )


def _tables(run: CollectivesRun, rows: _Rows, *, detail: bool) -> Iterator[Table]:
    """Yield a table for each exchange, that is a collective with its dtype and operation.

    It has a row for each size. With ``detail``, each group has its own table of the exchange.
    """
    groups, over_hosts = run.config.groups, len(run.hosts) > 1
    for exchange, exchange_rows in _by_exchange(rows):
        by_group = [[row for row in exchange_rows if row.group == group] for group in groups]
        for shown in [[group_rows] for group_rows in by_group] if detail else [by_group]:
            by_size: list[_Rows] = list(zip(*shown, strict=True))
            yield Table.of(
                _full_columns(over_hosts=over_hosts)
                if detail
                else _side_by_side(groups, over_hosts=over_hosts),
                by_size,
                title=f"{exchange}, {shown[0][0].group}" if detail else str(exchange),
                style=lambda same: "bad" if any(row.wrong for row in same) else "",
                chart=None if detail else _time_chart(1, exchange, exchange_rows),
            )


def _side_by_side(groups: Sequence[str], *, over_hosts: bool) -> list[Column[_Rows]]:
    """Return the columns of a table that shows groups side by side.

    The first column is the size. Each group has columns for its time and bus bandwidth, and with
    ``over_hosts`` also for its bytes on the wire and its form. The last column has the number of wrong
    elements of all groups. The rows given to a cell must be in the order of ``groups``.
    """
    columns = [_SIZE]
    for index, group in enumerate(groups):
        headings = [f"{group}\nus", "\nGB/s", *(["\nwire", "\nform"] if over_hosts else [])]
        columns += [
            Column(heading, partial(_cell_of, cell, index), block=group)
            for heading, cell in zip(headings, (_time, _bus, _wire, _first_form), strict=False)
        ]
    return [*columns, Column("\n#wrong", _wrong)]


def _full_columns(*, over_hosts: bool) -> list[Column[_Rows]]:
    return [*_COLUMNS_OF_ONE, *(_WIRE_COLUMNS if over_hosts else ())]


def _by_exchange(rows: _Rows) -> Iterator[tuple[Exchange, list[GroupAtSize]]]:
    """Yield each exchange with its rows, which must be neighbours in ``rows``."""
    for exchange, exchange_rows in groupby(rows, lambda row: (row.collective, row.dtype, row.operation)):
        yield Exchange(*exchange), list(exchange_rows)


def _headline(run: CollectivesRun) -> str:
    """Return one line with the ranks, hosts, device, launches and iterations of a sweep."""
    config = run.config
    over_hosts = f"{len(run.hosts)} hosts over {run.network.interface}" if len(run.hosts) > 1 else ""
    launches = "1 launch" if config.rounds == 1 else f"{config.rounds} launches"
    parts = [
        f"{counted(config.ranks, 'rank')} × {counted(config.threads_per_rank, 'thread')}",
        rehearsal_headline(run.network, run.hosts) or over_hosts,
        config.device,
        f"{launches} × {counted(config.iterations, 'iteration')}",
    ]
    return " · ".join(filter(None, parts))


def _warnings(run: CollectivesRun, rows: _Rows) -> Iterator[str]:
    """Yield a line for each thing that limits the figures of a sweep, such as wrong results or failures."""
    if not run.complete:
        yield "INCOMPLETE: the command was stopped before its last launch."
    for exchange, exchange_rows in _by_exchange(rows):
        for group, group_rows in groupby(exchange_rows, lambda row: row.group):
            yield from _group_warnings(f"{group}, {exchange}", list(group_rows))
    yield from (f"FAILED: {failure.message}" for failure in run.failures)
    if rounds := noisy_rounds(run):
        yield noisy_rounds_warning(numbered("round", rounds))
    yield from refused_copies({la.group: [rank.attestation for rank in la.ranks] for la in run.launches})
    if _waits_for_cores(run):
        ranks, cores = fullest_host(run)
        threads = run.config.threads_per_rank
        each = f"{counted(ranks, 'rank')} × {counted(threads, 'thread')}"
        of_one = " of a host" if len(run.hosts) > 1 and not run.network.rehearsed else ""
        shared = f"{counted(cores, 'core')}{of_one}"
        yield f"{each} share {shared}: ranks wait for cores, so times say little."
    for group, reason in run.left_out.items():
        yield f"{group} did not run: {reason}"


def _waits_for_cores(run: CollectivesRun) -> bool:
    ranks, cores = fullest_host(run)
    return ranks * run.config.threads_per_rank > cores


def _group_warnings(name: str, rows: _Rows) -> Iterator[str]:
    """Yield a line for a group's wrong results in one exchange, and one for each reason of a refusal."""
    if wrong := [str(row.message_bytes) for row in rows if row.wrong]:
        yield f"WRONG RESULTS: {name} at {listed(wrong)} bytes. Do not use its figures."
    refused = [row for row in rows if row.status == "refused"]
    for reason, alike in groupby(refused, lambda row: row.problem):
        sizes = [str(row.message_bytes) for row in alike]
        yield f"REFUSED: {name}{f' at {listed(sizes)} bytes' if len(sizes) < len(rows) else ''}: {reason}"


def _notes(run: CollectivesRun, rows: _Rows, *, detail: bool) -> Iterator[str]:
    """Yield the lines that explain the columns of the tables."""
    yield (
        "us: time of a call on the slowest rank, median of all iterations. ±: half of the distance of the "
        f"quartiles; ! marks more than {percent(_WIDE_SHARE)}."
    )
    factors = (f"{name} {bus_factor(name, run.config.ranks):.4g}" for name in run.config.collectives)
    yield (
        f"GB/s: bus bandwidth, size / time × the factor of nccl-tests ({', '.join(factors)}), in 10⁹ bytes a "
        "second. #wrong: elements, in a further call at each size, of data that depends on the rank."
    )
    if unsynced := [name for name in run.config.collectives if name in {"broadcast", "reduce", "send_recv"}]:
        yield (
            f"{listed(unsynced)}: ranks do not wait for all others. So the time of calls in a row is the "
            "inverse of a throughput."
        )
    if len(run.hosts) > 1:
        reason = why_no_forms(run)
        yield (
            "wire: bytes that the busiest host sent/received in a call, over the size. The kernel counted "
            "them on the interface, with packet headers."
        )
        yield (
            f"form: – because {reason}."
            if reason
            else "forms: algorithms whose bytes fit the wire, from 64 KiB."
            if detail
            else "form: an algorithm whose bytes fit the wire, from 64 KiB. +: so many others fit too; "
            "--detail names them."
        )
    if any(row.other_form for row in rows):
        yield (
            "*: the wire carried more than bus bandwidth supposes, so another form ran. The busiest link "
            "carried wire × size / time."
        )


def _conclusion(run: CollectivesRun, rows: _Rows) -> str:
    """Return which group is quickest at which sizes; empty for one group, or if ranks wait for cores."""
    if _waits_for_cores(run) or len({row.group for row in rows if row.seconds}) < 2:  # noqa: PLR2004 -- one group has no rival
        return ""
    if not any(row.launch_medians and row.launch_medians.method == "t" for row in rows):
        return "Which group is quickest is open, because one or two launches have no interval: --repeats 3."
    where = " (in noisy rounds)" if noisy_rounds(run) else ""
    return " ".join(_quickest_groups(exchange, list(same), where) for exchange, same in _by_exchange(rows))


def _quickest_groups(exchange: Exchange, rows: _Rows, where: str) -> str:
    """Return a sentence that names the quickest group of each range of sizes; it ends with ``where``."""
    sizes = sorted({row.message_bytes for row in rows})
    winners = {size: quickest([row for row in rows if row.message_bytes == size]) for size in sizes}
    ranges = [(name, list(same)) for name, same in groupby(sizes, key=lambda size: winners[size])]
    named = [(name, same) for name, same in ranges if name]
    if not named:
        return f"{exchange}: no group is clearly the quickest."
    if len(ranges) == 1:
        return f"{exchange}: {named[0][0]} is the quickest at every size{where}."
    if len(named) > _MOST_RANGES:
        counts = Counter(name for name, same in named for _ in same)
        each = (f"{name} at {count} of {len(sizes)} sizes" for name, count in counts.most_common())
        return f"{exchange}: quickest is {listed(each)}{where}."
    each = (f"{name} {_size_range(same)}" for name, same in named)
    return f"{exchange}: quickest is {listed(each)}{where}."


def _size_range(sizes: Sequence[int]) -> str:
    first, last = map(format_size, (sizes[0], sizes[-1]))
    return f"at {first}" if first == last else f"from {first} to {last}"


# ---- cells ----


def _cell_of(cell: Callable[[GroupAtSize], str], index: int, rows: _Rows) -> str:
    return cell(rows[index])


def _time(row: GroupAtSize) -> str:
    if row.seconds is None:
        return row.status
    share = row.seconds.share
    return f"{_microseconds(row.seconds.median)} ±{share * 100:2.0f}%{'!' if share > _WIDE_SHARE else ' '}"


def _microseconds(seconds: float) -> str:
    microseconds = seconds * 1e6
    return f"{microseconds:.{1 if microseconds < _WHOLE_MICROSECONDS else 0}f}"


def _bus(row: GroupAtSize) -> str:
    return _gigabytes(row.bus_bandwidth) + ("*" if row.other_form else "")


def _gigabytes(rate: float | None) -> str:
    """Return a bandwidth in GB/s; one that two decimals would show as 0.00 is ``<.01``."""
    shown = format_figure(rate, ".2f", 1e-9)
    return "<.01" if rate and shown == "0.00" else shown


def _wire(row: GroupAtSize) -> str:
    return f"{row.wire.sent:.2f}/{row.wire.received:.2f}" if row.wire else "–"


def _first_form(row: GroupAtSize) -> str:
    more = f" +{len(row.forms) - 1}" if len(row.forms) > 1 else ""
    return f"{row.forms[0]}{more}" if row.forms else "–"


def _wrong(rows: _Rows) -> str:
    known = [row.wrong for row in rows if row.wrong is not None]
    return str(sum(known)) if known else "–"


_SIZE: Column[_Rows] = Column("size\n(B)", lambda rows: str(rows[0].message_bytes))
_COLUMNS_OF_ONE: tuple[Column[_Rows], ...] = (
    _SIZE,
    Column("count", lambda rows: str(rows[0].count)),
    Column("type", lambda rows: rows[0].dtype),
    Column("redop", lambda rows: rows[0].operation),
    Column("root", lambda rows: str(rows[0].root)),
    Column("time\n(us)", lambda rows: _time(rows[0])),
    Column("min\n(us)", lambda rows: _microseconds(rows[0].seconds.minimum) if rows[0].seconds else "–"),
    Column("algbw\n(GB/s)", lambda rows: _gigabytes(rows[0].algorithm_bandwidth)),
    Column("busbw\n(GB/s)", lambda rows: _bus(rows[0])),
    Column("#wrong", _wrong),
)
"""The columns of nccl-tests for a single group."""
_WIRE_COLUMNS: tuple[Column[_Rows], ...] = (
    Column("wire", lambda rows: _wire(rows[0])),
    Column("forms", lambda rows: ", ".join(rows[0].forms) or "–"),
)
"""What the network shows of a single group; the ranks of one host do not use it."""


def _record(row: GroupAtSize) -> dict[str, object]:
    fields = msgspec.structs.asdict(row)
    spread, wire, medians = map(fields.pop, ("seconds", "wire", "launch_medians"))
    fields["forms"] = "; ".join(row.forms)
    fields |= {f"wire_{way}": getattr(wire, way, None) for way in ("sent", "received")}
    of_spread = ("median", "low", "high", "minimum", "n")
    fields |= {f"seconds_{name}": getattr(spread, name, None) for name in of_spread}
    return fields | {f"launch_medians_{name}": getattr(medians, name, None) for name in ("low", "high")}


# ---- charts ----


def _draw(rows: _Rows) -> Iterator[Picture]:
    """Yield two pictures of each exchange: every group's time and bus bandwidth over the message size."""
    for number, (exchange, exchange_rows) in enumerate(_by_exchange(rows), 1):
        yield from draw_lines(_time_chart(number, exchange, exchange_rows))
        yield from draw_lines(_rate_chart(number, exchange, exchange_rows))


def _time_chart(number: int, exchange: Exchange, rows: _Rows) -> Chart:
    return Chart.of(
        (
            (row.group, Point(row.message_bytes, seconds.median, seconds.low, seconds.high))
            for row in rows
            if row.message_bytes and (seconds := row.seconds)
        ),
        key=f"time-{number}",
        heading=f"{exchange}: time of a call",
        caption="Median of all iterations on the slowest rank, with quartiles.",
        x_axis=BYTES,
        y_axis=SECONDS,
    )


def _rate_chart(number: int, exchange: Exchange, rows: _Rows) -> Chart:
    return Chart.of(
        (
            (
                row.group,
                Point(
                    row.message_bytes,
                    rate,
                    rate * seconds.median / seconds.high,
                    rate * seconds.median / seconds.low,
                ),
            )
            for row in rows
            if (rate := row.bus_bandwidth) and (seconds := row.seconds)
        ),
        key=f"bandwidth-{number}",
        heading=f"{exchange}: bus bandwidth",
        caption="Size over time, times the factor of nccl-tests, with quartiles.",
        x_axis=BYTES,
        y_axis=RATE,
    )

"""Print an examination: all hosts, then all findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from compare.doctor.facts import LEVELS, Examination, ExaminedHost, Facts, Finding, Level, Topic
from compare.doctor.rules.machine import usable_cores
from compare.doctor.rules.software import mpi_flavour
from compare.text import counted, listed, printable

_STYLES: dict[Level, str] = {"problem": "red", "warning": "yellow", "note": "dim"}


class _Column(NamedTuple):
    heading: str
    topics: frozenset[Topic]
    """Findings about these colour the cell."""
    cell: Callable[[Facts, ExaminedHost], str]
    unknown: str = "–"
    """The cell of a host without facts."""


class DoctorReport:
    """The output of ``compare doctor``.

    A narrow terminal gets one table for software, and one for machines.
    """

    def __init__(self, examination: Examination) -> None:
        self.examination = examination

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = self._table([*_SOFTWARE, *_MACHINE])
        fits = Measurement.get(console, options.update(max_width=10_000), whole).maximum <= options.max_width
        yield from [whole] if fits else [self._table(_SOFTWARE), self._table(_MACHINE)]
        yield from _findings(self.examination)
        yield Text(_summary(self.examination), style="bold")

    def _table(self, columns: Sequence[_Column]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in ("host", *(column.heading for column in columns)):
            table.add_column(heading, overflow="fold")
        for each in self.examination.hosts:
            findings = [finding for finding in self.examination.findings if finding.host == each.host.name]
            table.add_row(*_cells(columns, each, findings))
        return table


def markdown(examination: Examination) -> str:
    """Write the same as Markdown, without a newline at the end."""
    columns = [*_SOFTWARE, *_MACHINE]
    headings = ["host", *(column.heading for column in columns)]
    rows = [headings, ["---"] * len(headings)]
    rows += [[cell.plain for cell in _cells(columns, each, [])] for each in examination.hosts]
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    for finding, hosts in _grouped(examination):
        lines += ["", f"**{finding.level}** {listed(hosts)}: {finding.what}", f"- found: {finding.found}"]
        lines += [f"- do: {finding.fix}"]
    return "\n".join([*lines, "", _summary(examination)])


def _cells(columns: Sequence[_Column], each: ExaminedHost, findings: list[Finding]) -> list[Text]:
    cells = [_coloured(each.host.name, findings)]
    for column in columns:
        about = [finding for finding in findings if finding.topic in column.topics]
        cells.append(_coloured(column.cell(each.facts, each) if each.facts else column.unknown, about))
    return cells


def _coloured(text: str, findings: list[Finding]) -> Text:
    worst = next((level for level in LEVELS[:2] if any(f.level == level for f in findings)), None)
    return Text(printable(text), style=_STYLES[worst] if worst else "")


def _findings(examination: Examination) -> Iterator[Text]:
    for finding, hosts in _grouped(examination):
        first = f"{finding.level}: {listed(hosts)}: {finding.what}"
        yield Text(printable(first), style=_STYLES[finding.level])
        for part in filter(None, (finding.found, finding.fix)):
            yield Text("  " + printable(part).replace("\n", "\n  "))


def _grouped(examination: Examination) -> list[tuple[Finding, list[str]]]:
    """Group equal findings of several hosts, in the order of the first."""
    found: dict[Finding, list[str]] = {}
    for finding in examination.findings:
        found.setdefault(msgspec.structs.replace(finding, host=""), []).append(finding.host)
    return list(found.items())


def _summary(examination: Examination) -> str:
    numbers = [(len(examination.of(level)), level) for level in LEVELS]
    findings = ", ".join(counted(number, level) for number, level in numbers if number)
    return f"{counted(len(examination.hosts), 'host')} examined: {findings or 'no findings'}."


# ---- columns ---------------------------------------------------------------------------------------------


def _package(name: str) -> Callable[[Facts, ExaminedHost], str]:
    return lambda facts, each: "?" if each.trouble else facts.packages.get(name, "–")


def _horovod(facts: Facts, each: ExaminedHost) -> str:
    controllers = ", ".join(facts.library("horovod").get("controllers", []))
    return f"{_package('horovod')(facts, each)} {f'({controllers})' if controllers else ''}".strip()


def _mpi(facts: Facts, each: ExaminedHost) -> str:
    if facts.quick or each.trouble:
        return "?"
    first = " ".join(mpi_flavour(facts.mpirun.output)).strip() if facts.mpirun else ""
    second = " ".join(mpi_flavour(facts.library("mpich").get("version", ""))).strip()
    return ", ".join(filter(None, [first, second.removeprefix("unknown")])) or "–"


def _slots(facts: Facts, each: ExaminedHost) -> str:
    gpus = f", {len(facts.gpus)} GPU" if facts.gpus else ""
    return f"{each.host.slots} on {usable_cores(facts):g}{gpus}"


def _interface(facts: Facts, _: ExaminedHost) -> str:
    """Return the interface of the default route, otherwise the first."""
    up = sorted(
        (interface for interface in facts.interfaces if interface.up and interface.name != "lo"),
        key=lambda interface: interface.name != facts.default_interface,
    )
    return f"{up[0].name} {(up[0].addresses or ['without address'])[0]}" if up else "–"


def _clock(_: Facts, each: ExaminedHost) -> str:
    return f"{each.clock_ahead_seconds:+.1f} ± {each.clock_uncertain_seconds:.1f} s"


def _disk(facts: Facts, _: ExaminedHost) -> str:
    free = [disk.free_bytes or 0 for disk in facts.disks]
    return f"{min(free) / 1e9:.1f} GB" if free else "–"


_SOFTWARE = (
    _Column("reached", frozenset({"reach"}), lambda _, each: f"{each.seconds:.1f} s", unknown="NO"),
    _Column("python", frozenset({"python"}), lambda facts, _: facts.python),
    _Column("ringside", frozenset({"ringside"}), lambda facts, _: facts.ringside or "–"),
    _Column("torch", frozenset({"torch"}), _package("torch")),
    _Column("horovod", frozenset({"horovod"}), _horovod),
    _Column("mpi", frozenset({"mpi"}), _mpi),
)
_MACHINE = (
    _Column("slots on cores", frozenset({"slots", "alike"}), _slots),
    _Column("interface", frozenset({"network", "hostname", "ports"}), _interface),
    _Column("clock", frozenset({"clock"}), _clock),
    _Column("least free", frozenset({"disk"}), _disk),
)

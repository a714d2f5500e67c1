"""The report of ``compare doctor``: a row for every host, then what was found and how to mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich import box
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from compare.doctor.diagnose import LEVELS, mpi_flavour, usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

    from compare.doctor.diagnose import Examination, Facts, Finding, Level, Seen, Topic

_STYLES: dict[Level, str] = {"problem": "red", "warning": "yellow", "note": "dim"}
_SHOWN_HOSTS = 6


class _Column(NamedTuple):
    heading: str
    topics: frozenset[Topic]
    """Findings of which this column is coloured."""
    cell: Callable[[Facts, Seen], str]
    unknown: str = "–"
    """The cell of a host that gave no facts."""


class DoctorReport:
    """What ``compare doctor`` prints; in a narrow terminal with two tables, software and machines.

    Args:
        examination: what was found.
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
        for seen in self.examination.hosts:
            mine = [finding for finding in self.examination.findings if finding.host == seen.host.name]
            table.add_row(*_cells(columns, seen, mine))
        return table


def markdown(examination: Examination) -> str:
    """Write the same as Markdown; the text ends without a newline."""
    columns = [*_SOFTWARE, *_MACHINE]
    headings = ["host", *(column.heading for column in columns)]
    rows = [headings, ["---"] * len(headings)]
    rows += [[cell.plain for cell in _cells(columns, seen, [])] for seen in examination.hosts]
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    for finding, hosts in _together(examination):
        lines += ["", f"**{finding.level}** {_listed(hosts)}: {finding.what}", f"- found: {finding.found}"]
        lines += [f"- do: {finding.fix}"]
    return "\n".join([*lines, "", _summary(examination)])


def _cells(columns: Sequence[_Column], seen: Seen, findings: list[Finding]) -> list[Text]:
    cells = [_coloured(seen.host.name, findings)]
    for column in columns:
        about = [finding for finding in findings if finding.topic in column.topics]
        cells.append(_coloured(column.cell(seen.facts, seen) if seen.facts else column.unknown, about))
    return cells


def _coloured(text: str, findings: list[Finding]) -> Text:
    worst = next((level for level in LEVELS[:2] if any(f.level == level for f in findings)), None)
    return Text(text, style=_STYLES[worst] if worst else "")


def _findings(examination: Examination) -> Iterator[Text]:
    for finding, hosts in _together(examination):
        style = _STYLES[finding.level]
        yield Text(f"{finding.level}: {_listed(hosts)}: {finding.what}", style=style)
        for part in (finding.found, finding.fix):
            if part:
                yield Text("  " + part.replace("\n", "\n  "))


def _together(examination: Examination) -> list[tuple[Finding, list[str]]]:
    """Put together what several hosts have in common, in the order in which it is first found."""
    found: dict[tuple[str, ...], tuple[Finding, list[str]]] = {}
    for finding in examination.findings:
        key = (finding.level, finding.what, finding.found, finding.fix)
        found.setdefault(key, (finding, []))[1].append(finding.host)
    return list(found.values())


def _listed(hosts: list[str]) -> str:
    more = len(hosts) - _SHOWN_HOSTS
    return ", ".join(hosts[:_SHOWN_HOSTS]) + (f" and {more} more" if more > 0 else "")


def _summary(examination: Examination) -> str:
    counted = [(len(examination.of(level)), level) for level in LEVELS]
    said = ", ".join(f"{number} {level}{'' if number == 1 else 's'}" for number, level in counted if number)
    number = len(examination.hosts)
    return f"{number} host{'' if number == 1 else 's'} examined: {said or 'nothing to complain of'}."


# ---- columns ---------------------------------------------------------------------------------------------


def _package(name: str) -> Callable[[Facts, Seen], str]:
    return lambda facts, seen: "?" if seen.trouble else facts.packages.get(name, "–")


def _horovod(facts: Facts, seen: Seen) -> str:
    library = facts.libraries.get("horovod")
    controllers = ", ".join(library.facts.get("controllers", [])) if library else ""
    return f"{_package('horovod')(facts, seen)} {f'({controllers})' if controllers else ''}".strip()


def _mpi(facts: Facts, seen: Seen) -> str:
    if facts.quick or seen.trouble:
        return "?"
    return " ".join(mpi_flavour(facts.mpirun.said)).strip() if facts.mpirun else "–"


def _slots(facts: Facts, seen: Seen) -> str:
    gpus = f", {len(facts.gpus)} GPU" if facts.gpus else ""
    return f"{seen.host.slots} on {usable_cores(facts):g}{gpus}"


def _interface(facts: Facts, _: Seen) -> str:
    """Return the one of its default route, or its first."""
    there = sorted(
        (interface for interface in facts.interfaces if interface.up and interface.name != "lo"),
        key=lambda interface: interface.name != facts.default_interface,
    )
    return f"{there[0].name} {(there[0].addresses or ['without address'])[0]}" if there else "–"


def _clock(_: Facts, seen: Seen) -> str:
    return f"{seen.clock_ahead_seconds:+.1f} ± {seen.clock_uncertain_seconds:.1f} s"


def _disk(facts: Facts, _: Seen) -> str:
    free = [disk.free_bytes or 0 for disk in facts.disks]
    return f"{min(free) / 1e9:.1f} GB" if free else "–"


_SOFTWARE = (
    _Column("reached", frozenset({"reach"}), lambda _, seen: f"{seen.seconds:.1f} s", unknown="NO"),
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

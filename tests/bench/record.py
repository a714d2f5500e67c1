"""Keep measurements from one run of the bench to the next."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from tests.bench import report
from tests.bench.estimate import Record

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench.estimate import Section


def write(output: Path, name: str, section: Section, command: str, *, order: list[str]) -> None:
    """Write the new section with the earlier ones, as JSON and Markdown.

    Args:
        output: the Markdown file; its JSON lies beside it.
        name: the name of the bench.
        section: its results.
        command: the command that measured it.
        order: the order of the benches in the file.
    """
    file, here = output.with_suffix(".json"), report.place()
    date = f"{datetime.now().astimezone():%Y-%m-%d}"
    records = {record.name: record for record in _read(file) if record.place == here and record.name in order}
    record = Record(name, section, command, date, here, report.code())
    # A bench that failed now keeps its earlier results.
    records[name] = records.get(name, record) if section.failed else record
    ordered = sorted(records.values(), key=lambda record: order.index(record.name))
    part = file.with_suffix(".part")  # an interrupt must not leave half a file
    part.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")
    part.replace(file)
    output.write_text(report.markdown(ordered))


def _read(file: Path) -> list[Record]:
    return msgspec.json.decode(file.read_bytes(), type=list[Record]) if file.exists() else []

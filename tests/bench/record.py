"""What was measured, kept from one run of the bench to the next."""

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
    """Write what was measured now, and with it what others left: as JSON, and from that as Markdown.

    Args:
        output: the Markdown; its JSON lies beside it.
        name: of the bench.
        section: what it found.
        command: what was executed to measure it.
        order: in which the benches stand.
    """
    file, here = output.with_suffix(".json"), report.place()
    date = f"{datetime.now().astimezone():%Y-%m-%d}"
    records = {record.name: record for record in _read(file) if record.place == here and record.name in order}
    record = Record(name, section, command, date, here, report.code())
    # What could not be measured now leaves in place what was measured before.
    records[name] = records.get(name, record) if section.failed else record
    ordered = sorted(records.values(), key=lambda record: order.index(record.name))
    part = file.with_suffix(".part")  # an interrupt must not leave half of it
    part.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")
    part.replace(file)
    output.write_text(report.markdown(ordered))


def _read(file: Path) -> list[Record]:
    return msgspec.json.decode(file.read_bytes(), type=list[Record]) if file.exists() else []

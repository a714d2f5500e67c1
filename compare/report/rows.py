"""Write rows as Markdown and CSV, and text that cannot steer a terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from compare.analysis.estimate import Estimate
from compare.text import printable

_FORMULA = ("=", "+", "-", "@")


def printable_line(text: str, style: str = "") -> Text:
    """Return a line with a style and with its control characters escaped."""
    return Text(printable(text), style=style)


def markdown_rows(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table; the second row must hold the alignment of the columns."""
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def markdown_text(lines: Iterable[str]) -> str:
    """Return the lines joined, with control characters and ``<`` escaped."""
    return "\n".join(printable(line).replace("<", "&lt;") for line in lines)


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as CSV, without a newline at the end; all must have the columns of the first.

    Control characters are escaped. An apostrophe before text such as ``=1`` keeps spreadsheets from reading a
    formula.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else ["arm"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _harmless(value) for name, value in row.items()} for row in rows)
    return out.getvalue().rstrip("\n")


def _harmless(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def flat(struct: msgspec.Struct) -> dict[str, object]:
    """Return the fields of a struct by name; an estimate gives three: ``x``, ``x_low`` and ``x_high``."""
    row: dict[str, object] = {}
    for name, value in msgspec.structs.asdict(struct).items():
        if isinstance(value, Estimate):
            row |= {name: value.mean, f"{name}_low": value.low, f"{name}_high": value.high}
        else:
            row[name] = value
    return row


def cut_in_the_middle(name: str, width: int) -> str:
    """Return a name in at most ``width`` cells of a terminal; a longer one has … in place of its middle."""
    if cell_len(name) <= width:
        return name
    tail = (width - 1) // 2
    end = name[-tail:] if tail else ""
    while cell_len(end) > tail:
        end = end[1:]
    return set_cell_size(name, width - 1 - cell_len(end)) + "…" + end

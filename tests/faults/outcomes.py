"""The table of outcomes in docs/failures.md, as the tests observed them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tests.faults.started import LAUNCHERS
from tests.lab.failure_table import write

if TYPE_CHECKING:
    from pathlib import Path

_FOUND_CHARACTERS = 100


class _Row(NamedTuple):
    fault: str
    code: int
    message: str


class Outcomes:
    """Collects one time a cell.

    A launcher with another message gets a row of its own.
    """

    def __init__(self) -> None:
        self._cells: dict[_Row, dict[str, float]] = {}

    def record(self, fault: str, launcher: str, code: int, printed: str, seconds: float) -> None:
        """Note the outcome, and the seconds from the fault to the exit."""
        cells = self._cells.setdefault(_Row(fault, code, _message(printed)), {})
        cells[launcher] = max(seconds, cells.get(launcher, 0.0))

    def markdown(self) -> str:
        """Render all rows."""
        heads = ["fault", "exit code", "message", *LAUNCHERS]
        rules = ["---", "---", "---", *["---:"] * len(LAUNCHERS)]
        return "\n".join(map(_line, [heads, rules, *map(self._row, self._cells)]))

    def _row(self, row: _Row) -> list[str]:
        cells = self._cells[row]
        seconds = [f"{cells[name]:.1f} s" if name in cells else "–" for name in LAUNCHERS]
        return [row.fault, str(row.code), row.message, *seconds]

    def write(self, file: Path) -> None:
        """Put the table between its marks in a file."""
        write(self.markdown(), file)


def _message(printed: str) -> str:
    """Return the error without arm, host and paths, which differ between runs."""
    lines = [line.strip() for line in printed.partition("error: ")[2].splitlines()]
    what = lines[0].partition(": ")[2] if lines else ""
    found = lines[1] if len(lines) > 1 else ""
    what = re.sub(r" on \S+ (failed|died|made)", r" on HOST \1", what)
    found = re.sub(r" Last seen .*|^rank 0 was at .*", "", found)[:_FOUND_CHARACTERS]
    return f"{what} {found}".replace("|", "/").strip()


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"

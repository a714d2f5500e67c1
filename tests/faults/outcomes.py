"""The table of outcomes in docs/failures.md, as the tests observed them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tests.lab.failure_table import Times, line, write

if TYPE_CHECKING:
    from pathlib import Path

_FOUND_CHARACTERS = 90


class _Row(NamedTuple):
    fault: str
    code: int
    message: str


class Outcomes(Times):
    """A launcher with another message gets a row of its own."""

    def outcome(self, fault: str, launcher: str, code: int, printed: str, seconds: float) -> None:
        """Note the outcome, and the seconds from the fault to the exit."""
        self.record(_Row(fault, code, _message(printed)), launcher, seconds)

    def markdown(self) -> str:
        """Render all rows; faults with one exit code and one message share a row."""
        heads = ["fault", "exit code", "message about rank 1, in short", "seconds"]
        alike: dict[tuple[int, str], list[_Row]] = {}
        for row in self._rows:
            alike.setdefault((row.code, row.message), []).append(row)
        rows = [
            ["; ".join(row.fault for row in same), str(code), message, self.seconds(*same)]
            for (code, message), same in alike.items()
        ]
        return "\n".join([line(heads), "|---|---|---|---:|", *map(line, rows)])

    def write(self, file: Path) -> None:
        """Put the table between its marks in a file."""
        write(self.markdown(), file)


def _message(printed: str) -> str:
    """Return the error in short: without arm, rank, host, paths and explanations."""
    lines = [line.strip() for line in printed.partition("error: ")[2].splitlines()]
    what = lines[0].partition(": ")[2] if lines else ""
    found = lines[1] if len(lines) > 1 else ""
    what = re.sub(r"^rank 1 on \S+ (?:(?:died|failed)\.)?", "", what)
    found = re.sub(r"Last seen .*|^rank 0 was at .*", "", found)[:_FOUND_CHARACTERS]
    return re.sub(r" \([^)]*\)", "", f"{what} {found}").replace("|", "/").strip()

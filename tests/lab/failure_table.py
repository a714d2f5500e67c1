"""Write tables of failures with the times that tests measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

BEFORE = "before any starts"


class Failure(NamedTuple):
    """A kind of failure, with its exit code, message and time limit."""

    what: str
    code: int | str
    named: str
    bound_seconds: float


class Times:
    """The measured times, by the row of a table and the launcher."""

    def __init__(self) -> None:
        self._rows: dict[NamedTuple, dict[str, float]] = {}

    def record(self, row: NamedTuple, launcher: str, seconds: float) -> None:
        """Record the time from failure to exit; the longest counts."""
        times = self._rows.setdefault(row, {})
        times[launcher] = max(seconds, times.get(launcher, 0.0))

    def seconds(self, *rows: NamedTuple) -> str:
        """Render the shortest and the longest time over the launchers of some rows."""
        times = [f"{time:.1f}" for time in sorted(time for row in rows for time in self._rows[row].values())]
        return "–".join(dict.fromkeys([times[0], times[-1]]))


class FailureTable(Times):
    """The table of a page, with its rows in the order of the page."""

    def markdown(self, order: list[Failure]) -> str:
        """Render all rows.

        Raises:
            ValueError: a failure of the order was not measured.
        """
        if missing := [failure.what for failure in order if failure not in self._rows]:
            raise ValueError(f"not measured: {', '.join(missing)}")
        heads = ["what fails", "exit code", "what is named", "seconds"]
        lines = [line(heads), "|---|---|---|---:|"]
        return "\n".join([*lines, *(self._row(failure) for failure in order)])

    def _row(self, failure: Failure) -> str:
        return line([failure.what, str(failure.code), failure.named, self.seconds(failure)])


def write(table: str, file: Path, name: str = "failures") -> None:
    """Write the table between two marks in a file.

    Raises:
        ValueError: the marks are missing or in the wrong order.
    """
    first, last = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, begin, rest = file.read_text().partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{file} has no place for the table: {first} … {last}")
    file.write_text(f"{before}{first}\n{table}\n{last}{after}")


def line(cells: list[str]) -> str:
    """Render a line of a table."""
    return f"| {' | '.join(cells)} |"

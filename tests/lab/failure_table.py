"""Write tables of failures with the times that tests measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LAUNCHERS = {
    "torchrun": "torchrun",
    "horovodrun-gloo": "horovodrun, Gloo",
    "horovodrun-mpi": "horovodrun, MPI",
    "mpirun": "mpirun",
}
BEFORE = "before any starts"


class Failure(NamedTuple):
    """A kind of failure, with its exit code, message and time limit."""

    what: str
    code: int | str
    named: str
    bound_seconds: float


class Times:
    """The measured times, one a cell of a row and a column.

    Args:
        columns: the heads of columns, by the names that ``record`` takes.
    """

    def __init__(self, columns: Mapping[str, str] = LAUNCHERS) -> None:
        self.columns = columns
        self._cells: dict[NamedTuple, dict[str, float]] = {}

    def record(self, row: NamedTuple, column: str, seconds: float) -> None:
        """Record the time from failure to exit; the longest counts."""
        cells = self._cells.setdefault(row, {})
        cells[column] = max(seconds, cells.get(column, 0.0))

    def seconds(self, row: NamedTuple) -> list[str]:
        """Render the cells of a row, in seconds."""
        cells = self._cells[row]
        return [f"{cells[name]:.1f}" if name in cells else "–" for name in self.columns]


class FailureTable(Times):
    """The table of a page, with a bound for every row."""

    def markdown(self, order: list[Failure]) -> str:
        """Render all rows.

        Raises:
            ValueError: a failure of the order was not measured.
        """
        if missing := [failure.what for failure in order if failure not in self._cells]:
            raise ValueError(f"not measured: {', '.join(missing)}")
        heads = ["what fails", "exit code", "what is named", "bound, s", *self.columns.values()]
        lines = [line(heads), line(["---", "---", "---", "---:", *["---:"] * len(self.columns)])]
        return "\n".join([*lines, *(self._row(failure) for failure in order)])

    def _row(self, failure: Failure) -> str:
        bound = f"{failure.bound_seconds:g}"
        return line([failure.what, str(failure.code), failure.named, bound, *self.seconds(failure)])


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

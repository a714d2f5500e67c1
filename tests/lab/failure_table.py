"""Write docs/hosts.md's table of failures with the times that tests measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

BEGIN, END = "<!-- failures: begin -->", "<!-- failures: end -->"
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
    """The measured times, one a cell of a row and a launcher."""

    def __init__(self) -> None:
        self._cells: dict[NamedTuple, dict[str, float]] = {}

    def record(self, row: NamedTuple, launcher: str, seconds: float) -> None:
        """Record the time from failure to exit; the longest counts."""
        cells = self._cells.setdefault(row, {})
        cells[launcher] = max(seconds, cells.get(launcher, 0.0))

    def seconds(self, row: NamedTuple) -> list[str]:
        """Render the cells of a row."""
        cells = self._cells[row]
        return [f"{cells[name]:.1f} s" if name in cells else "–" for name in LAUNCHERS]


class FailureTable(Times):
    """The table in docs/hosts.md."""

    def markdown(self, order: list[Failure]) -> str:
        """Render all rows.

        Raises:
            ValueError: a failure of the order was not measured.
        """
        if missing := [failure.what for failure in order if failure not in self._cells]:
            raise ValueError(f"not measured: {', '.join(missing)}")
        heads = ["what fails", "exit code", "what is named", "bound", *LAUNCHERS.values()]
        lines = [line(heads), line(["---", "---", "---", *["---:"] * 5])]
        return "\n".join([*lines, *(self._row(failure) for failure in order)])

    def _row(self, failure: Failure) -> str:
        bound = f"{failure.bound_seconds:g} s"
        return line([failure.what, str(failure.code), failure.named, bound, *self.seconds(failure)])


def write(table: str, file: Path) -> None:
    """Write the table between its two marks in a file.

    Raises:
        ValueError: the marks are missing or in the wrong order.
    """
    before, begin, rest = file.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{file} has no place for the table: {BEGIN} … {END}")
    file.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


def line(cells: list[str]) -> str:
    """Render a line of a table."""
    return f"| {' | '.join(cells)} |"

"""Define ``Document``: all that a command shows of a result, independent of the output format.

Every format can render every document, and none knows which command made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from compare.report.pictures import Chart, Picture

T = TypeVar("T")
Style: TypeAlias = Literal["", "best", "aside", "bad", "doubtful"]
"""How a row or a cell stands out; ``aside`` is of less interest. Each format chooses its colours."""


class Column(NamedTuple, Generic[T]):
    """A column of a table, with the function that returns the text of its cell for an item."""

    heading: str
    """The heading; a newline divides it into two lines."""
    cell: Callable[[T], str]
    is_text: bool = False
    """Whether the cells hold text, which is aligned left; numbers are aligned right."""
    block: str = ""
    """Neighbouring columns with the same block stay side by side on a narrow terminal."""


class Row(NamedTuple):
    """The cells of one item, in the order of the columns."""

    cells: tuple[str, ...]
    style: Style = ""
    styles: tuple[Style, ...] = ()
    """Style of each cell; empty if the whole row has one style."""
    shares: tuple[float | None, ...] = ()
    """Length of each cell's bar, from 0 to 1; None means no bar, and an empty tuple no bars."""


class Listing(NamedTuple):
    """Code or commands that stand below a table."""

    place: str
    """Where the text is from, or what it is for."""
    text: str
    language: Literal["python", "sh", "json"] = "python"
    """Only Python may be wrapped, because the rest is there to be copied; commands are continued."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of text cells; its first column has the names of the items."""

    columns: Sequence[Column[Any]]
    rows: Sequence[Row]
    title: str = ""
    is_grouped: bool = False
    """Whether neighbouring rows with the same first cell form a group, which a gap sets apart."""
    is_prose: bool = False
    """Whether the text cells hold sentences, which may be wrapped."""
    chart: Chart | None = None
    """Figures of the rows as lines, which a terminal draws below them; None if there is none."""
    listings: Sequence[Listing] = ()
    """Code to show below the rows."""

    @classmethod
    def of(
        cls,
        columns: Sequence[Column[T]],
        items: Iterable[T],
        *,
        title: str = "",
        style: Callable[[T], Style] = lambda _: "",
        is_grouped: bool = False,
        is_prose: bool = False,
        chart: Chart | None = None,
    ) -> Table:
        """Make a table with one row for each item, in the style that ``style`` returns for it."""
        rows = [Row(tuple(column.cell(item) for column in columns), style(item)) for item in items]
        return cls(
            columns=columns, rows=rows, title=title, is_grouped=is_grouped, is_prose=is_prose, chart=chart
        )


class Attested(NamedTuple):
    """Facts about an arm or a group, read back from the libraries and the kernel."""

    name: str
    """Label of the arm, or name of the group."""
    launcher: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class View:
    """What a reader chose to see of a result."""

    detail: bool = False
    """Show every column and note of a run, and for ``ringside collectives`` a table for each group."""
    report_argument: str = "RUN"
    """The argument that makes ``ringside report`` show this run again; notes suggest that command."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """All that a command shows of a result; each format renders the parts that it can show."""

    title: str
    """The settings in one line."""
    name: str = ""
    """What was compared, in a few words; a page has it as its title."""
    source: Sequence[str] = ()
    """Lines with the settings, the machine and the date, which every picture has that stands alone."""
    alerts: Sequence[str] = ()
    """Warnings that stand before the title, because every figure must be read with them."""
    glance: Table | None = None
    """A short table that a page shows before its pictures; None if there is none."""
    tables: Sequence[Table] = ()
    warnings: Sequence[str] = ()
    """Lines about what limits the figures."""
    failures: Sequence[str] = ()
    lead: Sequence[str] = ()
    """Lines with the most important findings."""
    statements: Sequence[str] = ()
    """Lines with further findings, such as the causes of a cost."""
    notes: Sequence[str] = ()
    """Lines that explain the figures."""
    conclusion: str = ""
    draw: Callable[[], Iterable[Picture]] = tuple
    """Returns the pictures of a page."""
    facts: Sequence[tuple[str, str]] = ()
    """Names and values that tell how the result was made; only a page shows them."""
    attested: Sequence[Attested] = ()
    records: Callable[[], Sequence[Mapping[str, object]]] = tuple
    """Returns every figure for programs (CSV): one record for each item, in seconds and bytes."""
    content: Callable[[], Any] = field(default=lambda: None)
    """Returns everything that is to be written as JSON."""

"""Define documents: what a command shows, without a format.

Every format can render every document, and none knows which command made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from compare.report.pictures import Picture

T = TypeVar("T")
Style: TypeAlias = Literal["", "best", "aside", "bad", "doubtful"]
"""How a row or a cell stands out; each format chooses its colours."""


class Column(NamedTuple, Generic[T]):
    """A column of a table, with a function that writes its cell for one item."""

    heading: str
    """The heading; a newline divides it into two lines."""
    cell: Callable[[T], str]
    is_text: bool = False
    """Whether the cells are text, which is aligned left; figures are aligned right."""
    block: str = ""
    """Neighbouring columns with the same block stay side by side on a narrow terminal."""


class Row(NamedTuple):
    """The cells of one item, in the order of the columns."""

    cells: tuple[str, ...]
    style: Style = ""
    styles: tuple[Style, ...] = ()
    """Style of each cell; empty if the whole row has one style."""
    shares: tuple[float | None, ...] = ()
    """Length of each cell's bar, from 0 to 1; None is no bar, and an empty tuple no bars."""


class Listing(NamedTuple):
    """Lines of source code, and the place where they stand."""

    place: str
    code: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells. The first column names the item of a row."""

    columns: Sequence[Column[Any]]
    rows: Sequence[Row]
    title: str = ""
    groups: bool = False
    """Whether neighbouring rows with the same first cell form a group, which a gap sets apart."""
    is_prose: bool = False
    """Whether the cells of text are sentences, which may be wrapped."""
    listings: Sequence[Listing] = ()
    """Code that follows below the rows."""

    @classmethod
    def of(
        cls,
        columns: Sequence[Column[T]],
        items: Iterable[T],
        *,
        title: str = "",
        style: Callable[[T], Style] = lambda _: "",
        groups: bool = False,
        is_prose: bool = False,
    ) -> Table:
        """Make a table with one row for each item."""
        rows = [Row(tuple(column.cell(item) for column in columns), style(item)) for item in items]
        return cls(columns=columns, rows=rows, title=title, groups=groups, is_prose=is_prose)


class Attested(NamedTuple):
    """Facts about an arm or a group, read back from the libraries and the kernel."""

    name: str
    launcher: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class View:
    """What a reader chose to see of a result."""

    wide: bool = False
    """Show every column and note of a run in a table, in place of the short view."""
    detail: bool = False
    """Also show where the cost goes in a run; of ``compare collectives``, show one table for each group."""
    sort: str | None = None
    """The order of arms: ``step``, ``name`` or ``sync``; None is the default order."""
    report_argument: str = "RUN"
    """The argument with which ``compare report`` shows the run again."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """All that a command shows of a result; each format takes what it can show."""

    title: str
    alerts: Sequence[str] = ()
    """Warnings that stand before the title, because every figure must be read with them."""
    glance: Table | None = None
    """A short table before the pictures of a page; None without one."""
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
    facts: Sequence[tuple[str, str]] = ()
    """Names and values that tell how the result was made, for a page."""
    attested: Sequence[Attested] = ()
    records: Callable[[], Sequence[Mapping[str, object]]] = tuple
    """Returns every figure for programs: one record for each item, in seconds and bytes."""
    content: Callable[[], Any] = field(default=lambda: None)
    """Returns everything for programs, to be written as JSON."""

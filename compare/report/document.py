"""What a command shows, without a format: every format renders a document, and knows no command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from compare.report.pictures.canvas import Picture

T = TypeVar("T")
Style: TypeAlias = Literal["", "best", "aside", "bad", "doubtful"]
"""How a row or a cell stands out."""


class Column(NamedTuple, Generic[T]):
    """A column of a table, with its cell for one item."""

    heading: str
    """With a newline where it takes two lines."""
    cell: Callable[[T], str]
    is_text: bool = False
    """Text is aligned left, figures right."""
    block: str = ""
    """Neighbours with the same block stay side by side on a narrow terminal."""


class Row(NamedTuple):
    """The cells of one item, in the order of the columns."""

    cells: tuple[str, ...]
    style: Style = ""
    styles: tuple[Style, ...] = ()
    """Those of single cells; empty if the row has one style."""
    shares: tuple[float | None, ...] = ()
    """What a bar before each cell shows, from 0 to 1; empty without bars."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells. The first column names the item of a row."""

    columns: Sequence[Column[Any]]
    rows: Sequence[Row]
    title: str = ""
    groups: bool = False
    """Whether neighbours with the same first cell belong together."""
    is_prose: bool = False
    """Whether its cells are sentences."""

    @classmethod
    def of(
        cls,
        columns: Sequence[Column[T]],
        items: Iterable[T],
        *,
        title: str = "",
        style: Callable[[T], Style] = lambda _: "",
        groups: bool = False,
    ) -> Table:
        """Make a table with one row for each item."""
        rows = [Row(tuple(column.cell(item) for column in columns), style(item)) for item in items]
        return cls(columns=columns, rows=rows, title=title, groups=groups)


class Attested(NamedTuple):
    """What the libraries and the kernel say of an arm or a group."""

    name: str
    launcher: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class View:
    """What a reader wants to see of a result, where there is a choice."""

    wide: bool = False
    """Every column, in a table."""
    detail: bool = False
    """Also where the cost goes, or one table for each group."""
    sort: str | None = None
    """The order of arms: step, name or sync."""
    again: str = "RUN"
    """The argument of ``compare report`` that shows it again."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """All that a command shows of a result, in the order of reading."""

    title: str
    alerts: Sequence[str] = ()
    """What stands before the title, because nothing holds without it."""
    glance: Table | None = None
    """The first table, where there is a shorter one than the others."""
    tables: Sequence[Table] = ()
    warnings: Sequence[str] = ()
    """What limits the figures."""
    failures: Sequence[str] = ()
    lead: Sequence[str] = ()
    """What to know first."""
    statements: Sequence[str] = ()
    """What else the figures mean."""
    notes: Sequence[str] = ()
    """What explains the figures."""
    conclusion: str = ""
    draw: Callable[[], Sequence[Picture]] = tuple
    facts: Sequence[tuple[str, str]] = ()
    """How it was made, for a page."""
    attested: Sequence[Attested] = ()
    records: Callable[[], Sequence[Mapping[str, object]]] = tuple
    """Every figure for programs, one record for each item, in seconds and bytes."""
    content: Callable[[], Any] = field(default=lambda: None)
    """Everything for programs, as JSON has it."""

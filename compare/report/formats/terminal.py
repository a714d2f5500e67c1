"""Lay a document out for a terminal of any width, without breaking a word or a number."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from textwrap import wrap

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from compare.report.cells import printable_line
from compare.report.document import Document, Row, Style, Table
from compare.text import printable

PLAIN_WIDTH = 200
"""Width in cells of output that is no terminal, enough for the widest table."""
_STYLES: dict[Style, str] = {
    "": "",
    "best": "bold green",
    "aside": "dim",
    "bad": "red",
    "doubtful": "yellow",
}
_GAP = "  "
_FIXED_SPACE = "\N{NO-BREAK SPACE}"
_UNIT = re.compile(r"(?<=\d) (?=(?:ms|µs|[kMG]?B|[MG]B/s|bytes|ranks?|samples?|tensors?|calls?)\b)")
_BAR_CELLS = 8
_NARROWEST_WITH_BARS = 72
_SHORTEST_NAME = 12
_PROSE_CELLS = 24
"""Width in cells that is reserved for a column of sentences; it gets more where there is room."""


class Shown:
    """A document that a rich console can print, laid out for its width."""

    def __init__(self, document: Document) -> None:
        self.document = document

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        document, width = self.document, options.max_width
        lines = [
            *(printable_line(line, "bold yellow") for line in document.alerts),
            printable_line(document.title, "bold"),
        ]
        for table in document.tables:
            lines += [Text(), *lay_out(table, width)]
        if document.tables:
            lines.append(Text())
        lines += [printable_line(line, "red") for line in document.failures]
        lines += [printable_line(line, "bold yellow") for line in document.warnings]
        lines += map(printable_line, [*document.lead, *document.statements])
        lines += [printable_line(line, "dim") for line in document.notes]
        lines += [printable_line(line, "bold") for line in filter(None, [document.conclusion])]
        for line in lines:
            for part in line.wrap(console, width):
                part.rstrip()
                yield part


def plain(document: Document, width: int = PLAIN_WIDTH) -> str:
    """Return what a terminal of this width shows of a document, without colours."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(Shown(document))
    return "\n".join(line.rstrip() for line in capture.get().strip("\n").splitlines())


def lay_out(table: Table, width: int) -> Iterator[Text]:
    """Yield the lines of a table, at most ``width`` cells wide if names and words allow it.

    Columns that do not fit beside the first one follow below, where the first one is repeated. Text that is
    too long for its column is wrapped. A name that is too long takes a line of its own.
    """
    table = _with_bars(table, _BAR_CELLS if width >= _NARROWEST_WITH_BARS else 0)
    if table.title:
        yield printable_line(table.title, "bold")
    blocks = [
        list(places)
        for _, places in groupby(
            range(1, len(table.columns)), key=lambda place: table.columns[place].block or place
        )
    ]
    if not blocks:
        yield from (printable_line(f" {row.cells[0]}") for row in table.rows)
    natural = [_natural_width(table, place) for place in range(len(table.columns))]
    name = min(natural[0], width // 3)
    while blocks:
        places = blocks.pop(0)
        while blocks and name + _total([*places, *blocks[0]], natural) < width:
            places += blocks.pop(0)
        yield from _Part(table, places, natural, width).lines()
        if blocks:
            yield Text()
    for place, code in table.listings:
        yield from [Text(), printable_line(f"  {place}"), *map(Text, _folded(code, width))]


def _folded(code: str, width: int) -> Iterator[str]:
    """Yield indented lines of code; those that are too wide are folded."""
    for line in printable(code).splitlines():
        words = line.lstrip()
        indent = " " * (4 + len(line) - len(words))
        more = indent + ("# " if words.startswith("#") else "        ")
        yield from wrap(
            words,
            width,
            initial_indent=indent,
            subsequent_indent=more,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]


def _with_bars(table: Table, cells: int) -> Table:
    """Return the table with a bar before each figure that has a share, at most ``cells`` wide."""

    def drawn(text: str, share: float | None) -> str:
        bar = "█" * max(1, round(share * cells)) if share is not None and cells else ""
        return f"{bar:<{cells}} {text:>5}" if share is not None else text

    rows = [
        row._replace(cells=tuple(map(drawn, row.cells, row.shares))) if row.shares else row
        for row in table.rows
    ]
    return replace(table, rows=rows)


def _natural_width(table: Table, place: int) -> int:
    """Return the width of a column in cells without wrapping; sentences get at most ``_PROSE_CELLS``."""
    line, word = _longest(table, place)
    is_sentence = table.is_prose and place and table.columns[place].is_text
    return max(word, min(line, _PROSE_CELLS)) if is_sentence else line


def _longest(table: Table, place: int) -> tuple[int, int]:
    """Return the cells of a column's longest line and of its longest word, the latter at most 24."""
    texts = [table.columns[place].heading, *(row.cells[place] for row in table.rows)]
    longest = max((cell_len(printable(line)) for text in texts for line in text.splitlines()), default=0)
    words = [word for text in texts for line in text.splitlines() for word in _tied(line).split(" ")]
    return longest, min(max(map(cell_len, words), default=0), _PROSE_CELLS)


def _total(places: Sequence[int], widths: Sequence[int]) -> int:
    """Return the width in cells of some columns, with a gap before each."""
    return sum(widths[place] + len(_GAP) for place in places)


class _Part:
    """The first column of a table and some of the others, which are shown side by side."""

    def __init__(self, table: Table, places: Sequence[int], natural: Sequence[int], width: int) -> None:
        self.table = table
        self.places = places
        self.room = min(natural[0], max(_SHORTEST_NAME, width - 1 - _total(places, natural)))
        """Width of the first column in cells."""
        self.widths = {place: natural[place] for place in places}
        left = width - 1 - self.room
        if table.is_prose or _total(places, natural) > left:
            self.widths |= self._shared_out(left)

    def _shared_out(self, left: int) -> dict[int, int]:
        """Return the widths of the columns of text, which share what columns of figures leave.

        No column gets more than its longest line needs. Each gets room for its longest word of up to 24
        cells.
        """
        texts = [place for place in self.places if self.table.columns[place].is_text]
        figures = sum(self.widths[place] for place in self.places if place not in texts)
        rest, widths = left - figures - len(_GAP) * len(self.places), {}
        longest = {place: _longest(self.table, place) for place in texts}
        for index, place in enumerate(sorted(texts, key=lambda place: longest[place][0])):
            line, word = longest[place]
            widths[place] = max(word, min(line, rest // (len(texts) - index)))
            rest -= widths[place]
        return widths

    def lines(self) -> Iterator[Text]:
        """Yield the headings, then the rows."""
        yield from self._headings()
        before = self.table.rows[0].cells[0] if self.table.rows else ""
        for row in self.table.rows:
            if self.table.groups and row.cells[0] != before:
                yield Text()
            before, name = row.cells[0], printable(row.cells[0])
            is_alone = max(map(cell_len, name.split("\n"))) > self.room
            if is_alone:
                yield Text(f" {name}", _STYLES[row.style])
            yield from self._lines_of(row, "" if is_alone else name)

    def _headings(self) -> Iterator[Text]:
        """Yield the lines of the headings; short ones stand at the bottom."""
        lines = {place: self.table.columns[place].heading.split("\n") for place in [0, *self.places]}
        height = max(map(len, lines.values()))
        filled = {place: [""] * (height - len(its)) + its for place, its in lines.items()}
        for number in range(height):
            cells = [self._aligned(place, filled[place][number]) for place in self.places]
            name = set_cell_size(filled[0][number], self.room)
            if line := f" {_GAP.join([name, *cells])}".rstrip():
                yield printable_line(line, "dim")

    def _lines_of(self, row: Row, name: str) -> Iterator[Text]:
        names = name.split("\n")
        wrapped = {place: _wrapped(row.cells[place], self.widths[place]) for place in self.places}
        for number in range(max(map(len, [names, *wrapped.values()]))):
            line = Text(" ", style=_STYLES[row.style])
            shown = names[number] if number < len(names) else ""
            line.append(set_cell_size(shown, self.room), _style_of(row, 0))
            for place, texts in wrapped.items():
                cell = texts[number] if number < len(texts) else ""
                line.append(_GAP + self._aligned(place, cell), _style_of(row, place))
            line.rstrip()
            yield line

    def _aligned(self, place: int, text: str) -> str:
        width = self.widths[place]
        is_text = self.table.columns[place].is_text
        return set_cell_size(text, width) if is_text else " " * (width - cell_len(text)) + text


def _style_of(row: Row, place: int) -> str:
    return _STYLES[row.styles[place]] if row.styles else ""


def _wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a cell, wrapped between words, but never between a figure and its unit."""
    lines = map(_tied, printable(text).splitlines())
    parts = [part for line in lines for part in wrap(line, width, break_on_hyphens=False) or [""]]
    return [part.replace(_FIXED_SPACE, " ") for part in parts]


def _tied(text: str) -> str:
    """Return text in which each figure is tied to its unit by a space at which no line is broken."""
    return _UNIT.sub(_FIXED_SPACE, text)

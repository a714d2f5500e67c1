"""Lay a document out for a terminal of any width, without breaking a word or a number."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from textwrap import wrap

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from compare.report.cells import printable_line
from compare.report.document import Document, Listing, Row, Style, Table
from compare.report.formats.plot import plot
from compare.text import printable

PLAIN_WIDTH = 200
"""Width in cells for output that does not go to a terminal, enough for the widest table."""
_STYLES: dict[Style, str] = {
    "": "",
    "best": "bold green",
    "aside": "dim",
    "bad": "red",
    "doubtful": "yellow",
}
_GAP = "  "
_FIXED_SPACE = "\N{NO-BREAK SPACE}"
_UNIT = re.compile(r"(?<=\d) (?=(?:ms|µs|[kMG]?B|[MG]B/s|bytes|ranks?|samples?|tensors?|calls?)\b|%)")
_SHELL_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|\\.?|[^\s'"\\])+""")
_UP_TO_A_SEPARATOR = re.compile(r"[^:/=,|_.]*[:/=,|_.]+|[^:/=,|_.]+")
_BAR_CELLS = 8
_NARROWEST_WITH_BARS = 72
_SHORTEST_NAME = 12
_PROSE_CELLS = 24
"""Width in cells that is planned for a column of sentences, which gets more if some is left."""


class ConsoleDocument:
    """A document that a rich console can print, laid out for the width of that console."""

    def __init__(self, document: Document) -> None:
        self.document = document

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        document, width = self.document, max(options.max_width, 1)
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
            is_short = all(cell_len(part) <= width for part in line.plain.split("\n"))
            if is_short or line.no_wrap:
                yield line
            else:
                yield from (Text(part, line.style) for part in _wrapped(line.plain, width))


def print_document(document: Document, console: Console) -> None:
    """Print a document on a console; words that are wider than the console are not cut."""
    console.print(ConsoleDocument(document), soft_wrap=True)


def plain_text(document: Document, width: int = PLAIN_WIDTH) -> str:
    """Return a document as a terminal of ``width`` cells shows it, without colours."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        print_document(document, console)
    return "\n".join(line.rstrip() for line in capture.get().strip("\n").splitlines())


def lay_out(table: Table, width: int) -> Iterator[Text]:
    """Yield the lines of a table, at most ``width`` cells wide if names and words allow it.

    Columns that do not fit beside the first one follow below, where the first one is repeated. Text that is
    too long for its column is wrapped. An item's name that is too long takes a line of its own.
    """
    table = _with_bars(table, _BAR_CELLS if width >= _NARROWEST_WITH_BARS else 0)
    if table.title:
        yield printable_line(table.title, "bold")
    blocks = [
        list(indexes)
        for _, indexes in groupby(
            range(1, len(table.columns)), key=lambda index: table.columns[index].block or index
        )
    ]
    if not blocks:
        yield from (printable_line(f" {row.cells[0]}") for row in table.rows)
    natural = [_natural_width(table, index) for index in range(len(table.columns))]
    name_width = min(natural[0], width // 3)
    while blocks:
        indexes = blocks.pop(0)
        while blocks and name_width + _total_width([*indexes, *blocks[0]], natural) < width:
            indexes += blocks.pop(0)
        yield from _Part(table, indexes, natural, width).lines()
        if blocks:
            yield Text()
    if table.chart and (lines := list(plot(table.chart, width))):
        yield from [Text(), *lines]
    for listing in table.listings:
        yield from [Text(), printable_line(f"  {listing.place}"), *_lines_of_listing(listing, width)]


def _lines_of_listing(listing: Listing, width: int) -> Iterator[Text]:
    """Yield the lines of a listing; a terminal wraps those to be copied that are still too wide."""
    if listing.language == "python":
        yield from map(Text, _folded(listing.text, width))
        return
    for line in printable(listing.text).splitlines():
        parts = _continued(line, width - 4) if listing.language == "sh" else [line]
        yield from (Text(f"    {part}", no_wrap=True) for part in parts)


def _continued(line: str, width: int) -> Iterator[str]:
    """Yield a line of a shell command as lines of at most ``width`` cells if its words allow it.

    Each but the last ends with a backslash, so the lines remain one command.
    """
    part = ""
    for word in _SHELL_WORD.findall(line):
        if part and cell_len(f"{part} {word} \\") > width:
            yield f"{part} \\"
            part = f"  {word}"
        else:
            part = f"{part} {word}" if part else word
    yield part


def _folded(code: str, width: int) -> Iterator[str]:
    """Yield lines of code, indented by four; those that are wider than ``width`` are folded."""
    for line in printable(code).splitlines():
        stripped = line.lstrip()
        indent = " " * (4 + len(line) - len(stripped))
        further_indent = indent + ("# " if stripped.startswith("#") else "        ")
        yield from wrap(
            stripped,
            width,
            initial_indent=indent,
            subsequent_indent=further_indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]


def _with_bars(table: Table, cells: int) -> Table:
    """Return the table with a bar of at most ``cells`` cells before each figure that has a share."""

    def with_bar(text: str, share: float | None) -> str:
        bar = "█" * max(1, round(share * cells)) if share is not None and cells else ""
        return f"{bar:<{cells}} {text:>5}" if share is not None else text

    rows = [
        row._replace(cells=tuple(map(with_bar, row.cells, row.shares))) if row.shares else row
        for row in table.rows
    ]
    return replace(table, rows=rows)


def _natural_width(table: Table, index: int) -> int:
    """Return the width of a column in cells; sentences count as at most ``_PROSE_CELLS`` if words allow."""
    line, word = _longest(table, index)
    is_sentence = table.is_prose and index and table.columns[index].is_text
    return max(word, min(line, _PROSE_CELLS)) if is_sentence else line


def _longest(table: Table, index: int) -> tuple[int, int]:
    """Return the widths in cells of a column's longest line and longest word, the latter at most 24."""
    texts = [table.columns[index].heading, *(row.cells[index] for row in table.rows)]
    longest = max((cell_len(printable(line)) for text in texts for line in text.splitlines()), default=0)
    words = [word for text in texts for line in text.splitlines() for word in _tied(line).split(" ")]
    return longest, min(max(map(cell_len, words), default=0), _PROSE_CELLS)


def _total_width(indexes: Sequence[int], widths: Sequence[int]) -> int:
    """Return the width in cells of the columns with these indexes together, with a gap before each."""
    return sum(widths[index] + len(_GAP) for index in indexes)


class _Part:
    """The first column of a table, with those other columns that are shown beside it."""

    def __init__(self, table: Table, indexes: Sequence[int], natural: Sequence[int], width: int) -> None:
        self.table = table
        self.indexes = indexes
        self.name_width = min(natural[0], max(_SHORTEST_NAME, width - 1 - _total_width(indexes, natural)))
        """Width of the first column in cells."""
        self.widths = {index: natural[index] for index in indexes}
        available = width - 1 - self.name_width
        if table.is_prose or _total_width(indexes, natural) > available:
            self.widths |= self._text_widths(available)

    def _text_widths(self, available: int) -> dict[int, int]:
        """Return the widths of the text columns, by index; they share what columns of figures leave.

        No column gets more than its longest line needs. Each is wide enough for its longest word of up to 24
        cells.
        """
        texts = [index for index in self.indexes if self.table.columns[index].is_text]
        figures = sum(self.widths[index] for index in self.indexes if index not in texts)
        rest, widths = available - figures - len(_GAP) * len(self.indexes), {}
        longest = {index: _longest(self.table, index) for index in texts}
        for done, index in enumerate(sorted(texts, key=lambda index: longest[index][0])):
            line, word = longest[index]
            widths[index] = max(word, min(line, rest // (len(texts) - done)))
            rest -= widths[index]
        return widths

    def lines(self) -> Iterator[Text]:
        """Yield the headings, then the rows."""
        yield from self._headings()
        last_name = self.table.rows[0].cells[0] if self.table.rows else ""
        for row in self.table.rows:
            if self.table.is_grouped and row.cells[0] != last_name:
                yield Text()
            last_name, name = row.cells[0], printable(row.cells[0])
            is_alone = max(map(cell_len, name.split("\n"))) > self.name_width
            if is_alone:
                yield Text(f" {name}", _STYLES[row.style])
            yield from self._lines_of(row, "" if is_alone else name)

    def _headings(self) -> Iterator[Text]:
        """Yield the lines of the headings; those with fewer lines than others begin lower."""
        widths = {0: self.name_width} | self.widths
        lines = {index: _wrapped(self.table.columns[index].heading, widths[index]) for index in widths}
        height = max(map(len, lines.values()))
        filled = {index: [""] * (height - len(texts)) + texts for index, texts in lines.items()}
        for number in range(height):
            cells = [self._aligned(index, filled[index][number]) for index in self.indexes]
            name = set_cell_size(filled[0][number], self.name_width)
            if line := f" {_GAP.join([name, *cells])}".rstrip():
                yield printable_line(line, "dim")

    def _lines_of(self, row: Row, name: str) -> Iterator[Text]:
        names = name.split("\n")
        wrapped = {index: _wrapped(row.cells[index], self.widths[index]) for index in self.indexes}
        for number in range(max(map(len, [names, *wrapped.values()]))):
            line = Text(" ", style=_STYLES[row.style])
            shown = names[number] if number < len(names) else ""
            line.append(set_cell_size(shown, self.name_width), _style_of(row, 0))
            for index, texts in wrapped.items():
                cell = texts[number] if number < len(texts) else ""
                line.append(_GAP + self._aligned(index, cell), _style_of(row, index))
            line.rstrip()
            yield line

    def _aligned(self, index: int, text: str) -> str:
        width = self.widths[index]
        is_text = self.table.columns[index].is_text
        return set_cell_size(text, width) if is_text else " " * (width - cell_len(text)) + text


def _style_of(row: Row, index: int) -> str:
    return _STYLES[row.styles[index]] if row.styles else ""


def _wrapped(text: str, width: int) -> list[str]:
    """Return text as lines of at most ``width`` cells, each with the indentation of the line it continues.

    A figure stays beside its unit. A word that is wider than a line, such as the name of an arm with many
    options, is broken behind its separators.
    """
    lines = []
    for whole in printable(text).splitlines():
        if cell_len(whole) <= width:
            lines.append(whole)
            continue
        indent = whole[: len(whole) - len(whole.lstrip(" "))]
        line = indent
        for word in _tied(whole.strip(" ")).split(" "):
            gap = " " if line.strip() else ""
            for part in _parts(word, max(width - len(indent), 1)):
                if line.strip() and cell_len(line + gap + part) > width:
                    lines.append(line)
                    line, gap = indent, ""
                line, gap = line + gap + part, ""
        lines.append(line)
    return [line.replace(_FIXED_SPACE, " ").rstrip() for line in lines]


def _parts(word: str, width: int) -> Iterator[str]:
    """Yield a word, or its parts up to each separator if it is wider than ``width`` cells."""
    for part in [word] if cell_len(word) <= width else _UP_TO_A_SEPARATOR.findall(word):
        yield from chop_cells(part, width)


def _tied(text: str) -> str:
    """Return text with a no-break space between each figure and its unit."""
    return _UNIT.sub(_FIXED_SPACE, text)

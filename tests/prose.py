"""Check that the project's prose is plain English.

It reads docstrings, comments, messages, names and documents. It reports long sentences, banned words,
long test names, and files and functions that grew too long. It also prints how long the sentences of README
and docs are on average, which should be 14 to 18 words, and which of them begin as telegrams do.

Usage: python tests/prose.py [PATH ...]
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

SUMMARY_WORDS = 20
SENTENCE_WORDS = 35
MESSAGE_WORDS = 3
"""A shorter string is no message."""
TEST_NAME_CHARACTERS = 70
FILE_LINES = 400
FUNCTION_LINES = 60

CHECKED = ("backends", "compare", "ringside", "tests", "docs", "hostfiles", "README.md", "CONTRIBUTING.md")
CHECKED += ("Makefile", ".ci", "pyproject.toml")
PAGES = ("docs", "README.md")
"""The texts whose mean is printed, without what is written from the code."""
WRITTEN_FROM_CODE = "docs/reference"
TELEGRAM = re.compile(r"\W*(?:Nor|Else|So (?:is|are|was|were|does)|Such|Of them)\b")
"""Openings of sentences that leave out what joins them to the one before."""
PRODUCT = ("backends", "compare", "ringside")
"""Folders whose files and functions have a length limit."""
MESSAGES = (*PRODUCT, "tests/bench")
"""Folders whose strings are read by people."""
NOT_PROSE = {".json", ".png", ".svg", ".pyc", ".gz"}

EXCEPTIONS = {
    "tests/prose.py": "the word list names the words that it forbids",
    "tests/test_prose.py": "it plants violations",
    "compare/launch/engines/__init__.py: host=": "a program for the shell, not a sentence",
    "compare/launch/interpreter.py: import importlib": "a program, not a sentence",
}
"""Files that are not read, as ``path``, and sentences that may be longer, as ``path: first words``."""

# ---- the word list ---------------------------------------------------------------------------------------

WORDS = {
    # Banned words.
    r"who(so)?ever": "name the person or the process",
    r"whatever": "any, all, or the thing's name",
    r"nobody": "no user, no process, none",
    r"lest": "so that ... not",
    r"but for": "except",
    r"none ?the ?less": "still, but",
    r"(is|are|was|were|be|been|being) told(?! apart)": "receives, gets, knows",
    r"said": "stated, printed, reported, logged",
    r"of which": "start a new sentence",
    r"it (is|was) (?!(so|such|clear|possible|likely|certain) )([\w'-]+ ){1,4}that": "subject, verb, object",
    # Processes do not speak, mind, hear or complain.
    r"complain(s|ed|ing|ts?)?": "fails, logs, warns, exits",
    r"hears?|heard": "receives",
    r"speaks?|spoke|spoken": "sends, logs, prints",
    r"minds?|minded": "checks, waits for, treats as an error",
    r"first words?": "first progress record",
    r"last[ _]words": "crash log",
    # The field's terms.
    r"sites?(?!-packages)": "cluster, launch place",
    r"spots?": "launch place, host",
    r"roll[ -]?call(s|ed)?|the roll": "missing ranks, the scan",
    r"blam(e[sd]?|ing)": "failures, root cause, first observed failure",
    r"guard(s|ed|ing)?": "watchdog, check, protect",
    r"oracles?": "reference",
    r"(?<!/dev/)null": "A/A test",
    r"fair(ness|ly)?": "conditions, controlled variables",
    r"(set|sets|setting) (it |them )?aside": "discard",
    r"(take|takes|taken|taking) (it |them )?again": "repeat",
    r"disturb(s|ed|ing|ance|ances)?": "noisy, noise",
    r"foreign": "other CPU load, other process",
    r"hiding": "overlap",
    r"deliver(y|ies)": "staging",
    r"patien(t|ce)": "grace period",
    r"mend(s|ed|ing)?": "fix",
}
"""Patterns of words that are not used, and what to write instead."""
BANNED = [(re.compile(rf"\b(?:{word})\b", re.IGNORECASE), instead) for word, instead in WORDS.items()]


class Violation(NamedTuple):
    """One place that breaks a rule."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


class Chunk(NamedTuple):
    """Some text without a paragraph break, and its first line."""

    line: int
    text: str


# ---- sentences -------------------------------------------------------------------------------------------

CODE = re.compile(r"(?::\w+:)?(?:``.+?``|`[^`\n]+`)", re.DOTALL)
URL = re.compile(r"<?https?://\S+")
MARKDOWN_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
SENTENCE_END = re.compile(r"(?<=[.!?])[)\"'”*_]*\s+")
ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|vs|cf|approx)\.|(?:^|\s)\.+)$")


def plain(text: str) -> str:
    """Replace code, links and addresses with one word each."""
    return URL.sub("URL ", CODE.sub("CODE", MARKDOWN_LINK.sub(r"\1", text)))


def sentences(text: str) -> Iterator[str]:
    """Split one paragraph into sentences."""
    start = 0
    for end in SENTENCE_END.finditer(text):
        if not ABBREVIATION.search(text[start : end.start()]):
            yield text[start : end.start()]
            start = end.end()
    if text[start:].strip():
        yield text[start:]


def words(sentence: str) -> int:
    """Count the words that hold a letter or a digit."""
    return sum(any(character.isalnum() for character in word) for word in sentence.split())


# ---- chunks of docstrings, comments and documents --------------------------------------------------------

SECTION = re.compile(r"(Args|Attributes|Example|Examples|Note|Notes|Raises|Returns|Yields|Usage):")
ENTRY = re.compile(r"\s+\*{0,2}[\w.`]+( \([^)]*\))?: ")
LIST_ITEM = re.compile(r"\s*([-*+]|\d+[.)]) ")
COLUMNS = re.compile(r"(?<=\S) {2,}(?=\S)")


def paragraphs(lines: Iterable[tuple[int, str]]) -> Iterator[Chunk]:
    """Join lines into paragraphs, list items, section entries and table cells."""
    start, joined, literal, section = 0, "", False, False
    for number, line in lines:
        inside_literal = literal and (not line.strip() or line.startswith(" "))
        row = COLUMNS.search(line)
        fresh = SECTION.fullmatch(line) or LIST_ITEM.match(line) or (section and ENTRY.match(line))
        if joined and (not line.strip() or fresh or row):
            yield Chunk(start, joined)
            joined = ""
        literal = inside_literal or line.rstrip().endswith("::")
        if not line.strip() or inside_literal or line.lstrip().startswith(">>>"):
            continue
        section = bool(SECTION.fullmatch(line)) or (section and line.startswith(" "))
        if row:
            yield from (Chunk(number, cell) for cell in COLUMNS.split(line.strip()))
            continue
        if not joined:
            start = number
        joined = f"{joined} {line.strip()}".strip()
    if joined:
        yield Chunk(start, joined)


def document(text: str) -> Iterator[Chunk]:
    """Read a Markdown document: paragraphs, list items, headings and table cells, without code."""
    lines: list[tuple[int, str]] = []
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        if fence or fenced or line.startswith(("<!--", "    ")):
            lines.append((number, ""))
        elif line.startswith("|"):
            lines.append((number, ""))
            cells = MARKDOWN_LINK.sub(r"\1", line).replace(r"\|", " ").strip("| ").split("|")
            lines += [pair for cell in cells for pair in ((number, cell.strip()), (number, ""))]
        elif line.startswith("#"):
            lines += [(number, line.strip("# ")), (number, "")]
        else:
            lines.append((number, line.removeprefix("> ")))
    return paragraphs(lines)


DIRECTIVE = re.compile(r"(noqa|type: ignore|pragma|!)")


def comments(path: str, text: str) -> Iterator[Chunk]:
    """Join the comments of neighbouring lines; one behind code stands for itself."""
    source, neighbour = text.split("\n"), 0
    lines: list[tuple[int, str]] = []
    for number, column, comment in (python_comments if path.endswith(".py") else hash_comments)(text):
        alone = not source[number - 1][:column].strip()
        body = comment.lstrip("#").removeprefix(" ").split("  # ")[0]
        if DIRECTIVE.match(body):
            continue
        if not alone or number != neighbour:
            lines.append((number, ""))
        lines.append((number, body.strip("- ") if body.startswith("---") else body.rstrip()))
        neighbour = number + 1 if alone else 0
    return paragraphs(lines)


def python_comments(text: str) -> Iterator[tuple[int, int, str]]:
    """Find the comments of Python source, each with its line and column."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield *token.start, token.string


def hash_comments(text: str) -> Iterator[tuple[int, int, str]]:
    """Find the comments of a shell script, a Makefile, TOML or a hostfile."""
    for number, line in enumerate(text.split("\n"), start=1):
        if comment := re.search(r"(?:^|(?<=\s))##? .*$", line):
            yield number, comment.start(), comment.group()


def page_sentences(text: str) -> list[str]:
    """List the whole sentences of a Markdown document, without headings and cells that are none."""
    body = re.sub(r"^#+ .*$", "", text, flags=re.MULTILINE)
    found = [sentence for chunk in document(body) for sentence in sentences(plain(chunk.text))]
    ended = (sentence for sentence in found if re.search(r"[.?!:][)\"'”*_]*$", sentence.strip()))
    return [sentence for sentence in ended if words(sentence)]  # the line below a table's head has none


def summary_of_pages(pages: Iterable[Path]) -> str:
    """Return how many sentences the pages have, their mean length, and each that begins as a telegram."""
    by_page = {page: page_sentences(page.read_text(encoding="utf-8")) for page in pages}
    counts = [words(sentence) for found in by_page.values() for sentence in found]
    telegrams = [
        f"{page.name}: begins as a telegram: {sentence.strip()[:60]}"
        for page, found in by_page.items()
        for sentence in found
        if TELEGRAM.match(sentence)
    ]
    mean = sum(counts) / max(len(counts), 1)
    return "\n".join([*telegrams, f"{len(counts)} sentences of README and docs, mean {mean:.1f} words"])


# ---- Python ----------------------------------------------------------------------------------------------


def docstrings(tree: ast.AST) -> Iterator[tuple[ast.Constant, list[Chunk]]]:
    """Find every string that stands as a statement: docstrings, and those of constants and fields."""
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            node = statement.value
            if isinstance(node.value, str):
                lines = inspect.cleandoc(node.value).splitlines()
                yield node, list(paragraphs(enumerate(lines, start=node.lineno)))


def messages(tree: ast.AST) -> Iterator[Chunk]:
    """Find every message that is no docstring; a hole of an f-string is one word."""
    known = {id(node) for node, _ in docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            known |= {id(value) for value in node.values if isinstance(value, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (value.value if isinstance(value, ast.Constant) else "HOLE" for value in node.values)
            text = "".join(str(part) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in known:
            text = node.value
        else:
            continue
        if len(re.findall(r"\b[a-zA-Z]{2,}\b", text)) >= MESSAGE_WORDS and " " in text:
            wrapped = 0 <= (node.end_lineno or 0) - node.lineno - text.count("\n") <= ("\n" in text)
            lines = text.splitlines() if wrapped else re.split(r"(\n)", text)
            yield from paragraphs((node.lineno, line) for line in lines)


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Find the names of functions, classes, arguments and variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr


def apart(name: str) -> str:
    """Write a name's parts as words: ``LastWords`` and ``last_words`` are ``last words``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_+", " ", name).lower().strip()


# ---- the checks ------------------------------------------------------------------------------------------


def of_words(path: str, line: int, text: str, rule: str = "word") -> Iterator[Violation]:
    """Report the words that are not used."""
    text = text.strip()
    for pattern, instead in BANNED:
        for hit in pattern.finditer(text):
            yield Violation(path, line, rule, f"{hit.group()!r} in {text!r}: write {instead}")


def of_chunks(path: str, chunks: Iterable[Chunk]) -> Iterator[Violation]:
    """Report long sentences and words that are not used."""
    for line, raw in chunks:
        text = plain(raw)
        yield from of_words(path, line, text)
        for sentence in sentences(text):
            allowed = f"{path}: {sentence}".startswith(tuple(EXCEPTIONS))
            if (count := words(sentence)) > SENTENCE_WORDS and not allowed:
                yield Violation(path, line, "sentence", f"{count} words: {sentence.strip()}")


def of_names(path: str, tree: ast.AST) -> Iterator[Violation]:
    """Report names of tests that are too long, and words in names that are not used."""
    for line, name in names(tree):
        yield from of_words(path, line, apart(name), "name")
        if name.startswith("test_") and len(name) > TEST_NAME_CHARACTERS:
            yield Violation(path, line, "name", f"{len(name)} characters: {name}")


def of_lengths(path: str, text: str, tree: ast.AST) -> Iterator[Violation]:
    """Report files and functions that are too long."""
    if (lines := len(text.splitlines())) > FILE_LINES:
        yield Violation(path, 1, "file", f"{lines} lines, more than {FILE_LINES}")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield Violation(path, node.lineno, "function", f"{node.name}: {length} lines")


def of_python(path: str, text: str) -> Iterator[Violation]:
    """Report what is wrong in Python source."""
    tree = ast.parse(text)
    for _, chunks in docstrings(tree):
        yield from of_chunks(path, chunks)
        if chunks and (count := words(plain(chunks[0].text))) > SUMMARY_WORDS:
            yield Violation(path, chunks[0].line, "summary", f"{count} words: {chunks[0].text}")
    yield from of_chunks(path, comments(path, text))
    yield from of_names(path, tree)
    if path.startswith(MESSAGES):
        yield from of_chunks(path, messages(tree))
    if path.startswith(PRODUCT):
        yield from of_lengths(path, text, tree)


def of_text(path: str, text: str) -> list[Violation]:
    """Report what is wrong in one file; its ending chooses how it is read."""
    if path.endswith(".py"):
        found = of_python(path, text)
    else:
        found = of_chunks(path, document(text) if path.endswith(".md") else comments(path, text))
    return sorted(found, key=lambda violation: violation.line)


def files(path: Path) -> Iterator[Path]:
    """Find the files with prose under a path."""
    for found in sorted(path.rglob("*")) if path.is_dir() else [path]:
        named = found.relative_to(ROOT).as_posix() not in EXCEPTIONS
        if named and found.is_file() and found.suffix not in NOT_PROSE and "__pycache__" not in found.parts:
            yield found


def violations(paths: Iterable[str] = CHECKED) -> list[Violation]:
    """Check every file under the paths, which are relative to the project's root."""
    found: list[Violation] = []
    for path in paths:
        for file in files(ROOT / path):
            found += of_text(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8"))
    return found


def main() -> int:
    """Print the violations in the files and folders of the command line, or in all."""
    found = violations([str(Path(path).resolve().relative_to(ROOT)) for path in sys.argv[1:]] or CHECKED)
    print("\n".join(map(str, found)))
    pages = [page for path in PAGES for page in files(ROOT / path) if page.suffix == ".md"]
    print(summary_of_pages(page for page in pages if not page.is_relative_to(ROOT / WRITTEN_FROM_CODE)))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

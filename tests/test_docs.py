"""Links of the documentation lead somewhere, and its commands are right."""

from __future__ import annotations

import re
import shlex
import tomllib

import pytest
import typer.main

from compare.cli.main import EXIT_CODES, app
from compare.schema.arms import parse_arms
from tests.comparing import ROOT

DOCS = ROOT / "docs"
PROGRAM = typer.main.get_command(app)
OTHERS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")
PAGES = sorted([*DOCS.rglob("*.md"), *(ROOT / name for name in OTHERS)])
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def anchors(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.*)$", _CODE.sub(_without_marks, page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def _without_marks(code):
    return "" if code[0].startswith("```") else code[0].strip("`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_links_to_files_and_headings_that_exist(page):
    for link in _LINK.findall(_CODE.sub(_without_marks, page.read_text())):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
        # The web pages are those of docs/ alone.
        assert not page.is_relative_to(DOCS) or target.is_relative_to(DOCS), link


def test_nav_lists_every_page():
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    shown = set(re.findall(r"'([\w/-]+\.md)'", str(nav)))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert shown == pages


def commands_of(page, languages=("", "bash", "yaml")):
    """List the command lines of Ringside in the blocks of a page.

    They may be indented, as in a workflow.
    """
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        if language not in languages:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if found := re.match(r"\s*(?:\$ )?(ringside [a-z].*?)(?:(?: &&|;| > ).*)?$", line):
                yield found[1]


def parse(arguments):
    """Parse a command line as the program does, without carrying it out."""
    command, context = PROGRAM, None
    while hasattr(command, "commands") and arguments:
        context = command.make_context("ringside", arguments[:1], parent=context, resilient_parsing=True)
        command, arguments = command.commands[arguments[0]], arguments[1:]
    return command.make_context(command.name, arguments, parent=context).params


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_parse(page):
    for line in commands_of(page):
        asked = shlex.split(line, comments=True)[1:]
        if "--help" in asked:
            continue
        given = parse(asked)
        if behind := given.get("command"):  # of a job
            given = parse(list(behind))
        if page.name != "add-an-arm.md":  # its arm is the reader's
            parse_arms(given.get("backend") or [], with_aa_test=True)


def test_commands_of_a_workflow_are_found_whole():
    """The command is indented, and continues on a second line."""
    (line,) = commands_of(DOCS / "ci-gate.md", {"yaml"})
    assert line.startswith("ringside gate --against")
    assert line.endswith("--export gate.xml --export gate.md")


def test_every_exit_code_has_its_row():
    rows = re.findall(r"^\| (\d+) \|", (DOCS / "errors.md").read_text(), re.MULTILINE)
    assert list(map(int, rows)) == list(EXIT_CODES)


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100

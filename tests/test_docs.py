"""Links of the documentation lead somewhere."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.comparing import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
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
        assert page.parent == ROOT or target.is_relative_to(DOCS), link


def test_nav_lists_every_page():
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    shown = set(re.findall(r"'([\w/-]+\.md)'", str(nav)))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert shown == pages


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150

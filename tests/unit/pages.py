"""Write runs in every format, and read pages as their reader sees them."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from compare.report import View, document_of, write

NOT_SHOWN = {"head", "title", "desc", "style"}
LINES = {"tr", "p", "li", "text", "h1", "h2", "h3", "dd", "figcaption", "summary"}


def render(run, analysis, form, **view):
    """Return a run as text in one format; ``view`` has the fields of a ``View``."""
    return write(document_of(run, form, View(**view), analysis=analysis), form)


class Page(HTMLParser):
    """The tags of a page, its attributes, and its text."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags = []
        self.attributes = []
        self.shown = []
        self.hidden = 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.hidden += tag in NOT_SHOWN

    def handle_endtag(self, tag):
        self.hidden -= tag in NOT_SHOWN
        self.shown.append("\n" if tag in LINES else "  " if tag in {"td", "th"} else "")

    def handle_data(self, data):
        if not self.hidden:
            self.shown.append(data if data.strip() else "")


def text_of(page):
    """Return the text of a page, a line for each row."""
    lines = "".join(Page(page).shown).splitlines()
    return "\n".join(re.sub(r"[ \t]+$", "", line) for line in lines if line.strip())


def opened(page, folder):
    """Open a page in headless Chromium, and return its elements.

    Without a browser the test is skipped. An error on its console fails the test.
    """
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        pytest.skip("no Chromium is installed here")
    file = folder / "page.html"
    file.write_text(page)
    done = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
            *(f"--user-data-dir={folder / 'profile'}", "--dump-dom", file.as_uri()),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    return done.stdout

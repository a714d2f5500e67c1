"""Read pages as their reader sees them."""

from __future__ import annotations

import re
from html.parser import HTMLParser

NOT_SHOWN = {"head", "title", "desc", "style"}
LINES = {"tr", "p", "li", "text", "h1", "h2", "h3", "dd", "figcaption", "summary"}


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

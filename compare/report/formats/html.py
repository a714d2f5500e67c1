"""Write documents as one page that needs no scripts and no network, and their pictures as SVG."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from compare.report.document import Attested, Document
from compare.text import printable

_FLAG = re.compile(r"(?<![\w-])(--?[a-z][\w-]{0,40})")
_LONGEST_FACT = 400
_DEEPEST_FACT = 3


def page_of(documents: Sequence[Document]) -> str:
    """Return one HTML page of all documents, without a newline at the end."""
    several = len(documents) > 1
    template = _templates().get_template("document.html")
    bodies = [
        template.render(
            document=document,
            pictures=document.draw(),
            attested=[(own.name, own.launcher, _facts_of(own)) for own in document.attested],
            prefix=f"r{number}-" if several else "",
        )
        for number, document in enumerate(documents, 1)
    ]
    titles = [document.title for document in documents]
    page: str = (
        _templates()
        .get_template("page.html")
        .render(
            title=titles[0] if not several else f"{titles[0]} and {len(titles) - 1} more",
            titles=titles,
            bodies=[Markup(body) for body in bodies],  # noqa: S704 -- templates have escaped them
        )
    )
    return page.rstrip()


def pictures_of(documents: Sequence[Document]) -> dict[str, str]:
    """Return the SVG of each picture, by the name of its file without ``.svg``.

    If there are several documents, a name begins with the number of its document.
    """
    template = _templates().get_template("picture.svg")
    return {
        f"{number}-{picture.key}" if len(documents) > 1 else picture.key: template.render(
            picture=picture
        ).strip()
        for number, document in enumerate(documents, 1)
        for picture in document.draw()
    }


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("compare.report.formats"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["flags"] = _keep_flags
    return environment


def _harmless(value: Any) -> Any:
    """Return a value with the control characters of text escaped; Jinja escapes its markup."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else printable(value)


def _keep_flags(text: str) -> Markup:
    """Return escaped text that keeps each flag on one line, because browsers break lines after its dashes."""
    return Markup(_FLAG.sub(r'<span class="flag">\1</span>', str(escape(printable(text)))))  # noqa: S704 -- escaped


def _facts_of(attested: Attested) -> list[tuple[str, str]]:
    return _flat(attested.facts)


def _flat(value: Any, name: str = "", depth: int = 0) -> list[tuple[str, str]]:
    """Return nested facts as pairs of a dotted name and a value, which is cut if it is long.

    What is nested more than three levels deep becomes one value.
    """
    if isinstance(value, dict) and value and depth < _DEEPEST_FACT:
        inner = (_flat(own, f"{name}.{key}" if name else str(key), depth + 1) for key, own in value.items())
        return [line for lines in inner for line in lines]
    text = str(value)
    return [(name, text if len(text) <= _LONGEST_FACT else f"{text[:_LONGEST_FACT]}…")]

"""Write documents as one HTML page without scripts and outside files, and their pictures as SVG."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from compare.report.document import Document
from compare.text import printable

_COLOUR = re.compile(r"--(\w+): (#\w+);")
_WHOLE = re.compile(r"(?<![\w-])(--?[a-z][\w-]{0,40}|\([\d.,]{1,20}–[\d.,]{1,20}\))")
_JOINT = re.compile(r"(?<=\w)([:=])(?=\w)")
_LONGEST_FACT = 400


def page_of(documents: Sequence[Document]) -> str:
    """Return one HTML page that shows all documents, without a newline at the end."""
    first, *others = (document.name or document.title for document in documents)
    title = f"{first} and {len(others)} more" if others else first
    page: str = _templates().get_template("page.html").render(documents=documents, title=title)
    return page.rstrip()


def pictures_of(documents: Sequence[Document]) -> dict[str, str]:
    """Return each picture of the documents as SVG, by the name for its file, without ``.svg``.

    If there are several documents, a name begins with the number of its document, counted from 1.
    """
    template, css = _templates().get_template("picture.svg"), Markup(_picture_css())  # noqa: S704 -- our own
    prefixes = [f"{number}-" for number in range(1, len(documents) + 1)] if len(documents) > 1 else [""]
    return {
        f"{prefix}{picture.key}": template.render(
            picture=picture.alone(document.source or [document.title]), css=css
        ).strip()
        for prefix, document in zip(prefixes, documents, strict=True)
        for picture in document.draw()
    }


@cache
def _picture_css() -> str:
    """Return the styles of a picture that stands alone, light or dark as its reader prefers.

    Programs for slides know neither variables nor media, so every rule states its own light colour.
    """
    colours, style = (
        (files("compare.report.formats") / "templates" / name).read_text()
        for name in ("colours.css", "picture.css")
    )
    light, dark = (dict(_COLOUR.findall(part)) for part in colours.split("@media")[:2])

    def coloured(values: Mapping[str, str]) -> str:
        return re.sub(r"var\(--(\w+)\)", lambda name: values[name[1]], style)

    return f"{coloured(light)}@media (prefers-color-scheme: dark) {{\n{coloured(light | dark)}}}\n"


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
    environment.filters |= {"whole": _keep_whole, "breakable": _breakable, "flat": _flat}
    return environment


def _harmless(value: Any) -> Any:
    """Return text with control characters escaped, and any other value as it is; Jinja escapes markup."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else printable(value)


def _keep_whole(text: str) -> Markup:
    """Return text as HTML in which no flag or interval is broken, as browsers do after dashes."""
    return Markup(_WHOLE.sub(r'<span class="whole">\1</span>', str(_breakable(text))))  # noqa: S704 -- escaped


def _breakable(text: str) -> Markup:
    """Return text as HTML in which the name of an arm may be broken after its colons and equals signs."""
    return Markup(_JOINT.sub(r"\1<wbr/>", str(escape(printable(text)))))  # noqa: S704 -- escaped


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested facts as pairs of a dotted name and a text of at most 400 characters."""
    for name, value in facts.items():
        text = str(value)
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", text if len(text) <= _LONGEST_FACT else f"{text[:_LONGEST_FACT]}…"

"""Put items on one page, and each picture into a file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from compare.schema.collectives import CollectivesRun
from compare.schema.results import Run
from compare.schema.scale import Series
from compare.text import printable

_FLAG = re.compile(r"(?<![\w-])(--?[a-z][\w-]{0,40})")
_LONGEST_FACT = 400
_DEEPEST_FACT = 3


class Item(NamedTuple):
    """What a page shows: a run, collectives, scaling or a prediction."""

    title: str
    template: str
    content: Mapping[str, Any]
    """With the list ``pictures``."""


def page_of(items: Sequence[Item]) -> str:
    """Render one page of all items."""
    several = len(items) > 1
    bodies = [
        _templates()
        .get_template(item.template)
        .render(**item.content, prefix=f"r{number}-" if several else "")
        for number, item in enumerate(items, 1)
    ]
    title = items[0].title if not several else f"{items[0].title} and {len(items) - 1} more"
    page: str = (
        _templates()
        .get_template("page.html")
        .render(title=title, titles=[item.title for item in items], bodies=[Markup(body) for body in bodies])  # noqa: S704 -- templates have escaped them
    )
    return page.rstrip()


def pictures_of(items: Sequence[Item]) -> dict[str, str]:
    """Render every picture as an SVG file, by its name."""
    template = _templates().get_template("picture.svg")
    return {
        f"{number}-{picture.key}" if len(items) > 1 else picture.key: template.render(picture=picture).strip()
        for number, item in enumerate(items, 1)
        for picture in item.content["pictures"]
    }


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("compare.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["flags"] = _keep_flags
    return environment


def _harmless(value: Any) -> Any:
    """Escape control characters of names; Jinja escapes markup."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else printable(value)


def _keep_flags(text: str) -> Markup:
    """Keep each flag in one line: browsers break lines after its dashes."""
    return Markup(_FLAG.sub(r'<span class="flag">\1</span>', str(escape(printable(text)))))  # noqa: S704 -- escaped


# ---- what all pages state ----


def facts_of(made: Run | CollectivesRun | Series) -> list[tuple[str, str]]:
    """Return by which command something was measured, and when."""
    return [
        ("command", " ".join(made.command)),
        ("started", made.started_at),
        ("Ringside", made.ringside_version),
    ]


def attested(name: str, launcher: str, attestation: Any) -> tuple[str, str, list[tuple[str, str]]]:
    """Return an attestation as lines, under its arm and launcher."""
    return name, launcher, _flat(attestation)


def _flat(value: Any, name: str = "", depth: int = 0) -> list[tuple[str, str]]:
    """Spread nested facts over lines; what lies deeper is one text."""
    if isinstance(value, dict) and value and depth < _DEEPEST_FACT:
        inner = (_flat(own, f"{name}.{key}" if name else str(key), depth + 1) for key, own in value.items())
        return [line for lines in inner for line in lines]
    text = str(value)
    return [(name, text if len(text) <= _LONGEST_FACT else f"{text[:_LONGEST_FACT]}…")]

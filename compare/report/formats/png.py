"""Render pictures as PNG from their SVG."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from compare.errors import UnavailableError

_ZOOM = 2.0
"""Pixels for each unit of a picture."""
_VARIABLE = re.compile(r"var\((--[\w-]+)\)")
_VALUE = re.compile(r"(--[\w-]+): *([^;]+);")
_QUERY = re.compile(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*\s*\}")
_FONT = re.compile(r"font: 13px[^;]*;")
_FAMILIES = "DejaVu Sans, Liberation Sans, Noto Sans, Open Sans, Roboto, Ubuntu, Arial, Helvetica, sans-serif"
_PROBE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">'
    f'<text y="15" font-family="{_FAMILIES}">{{}}</text></svg>'
)


def png_of(pictures: Iterable[str]) -> list[bytes]:
    """Return each SVG rendered as PNG, in its light colours.

    Raises:
        UnavailableError: resvg-py is missing, or every font that labels may have.
    """
    try:
        from resvg_py import svg_to_bytes
    except ImportError as error:
        raise UnavailableError(
            "--png needs resvg-py, which cannot be imported.",
            found=f"{error}.",
            remedy="Install it with pip install resvg-py, or leave --png out, because SVG needs no library.",
        ) from error
    _require_font(svg_to_bytes)
    return [svg_to_bytes(svg_string=_plain(svg), background="white", zoom=_ZOOM) for svg in pictures]


def _require_font(draw: Callable[..., bytes]) -> None:
    """Raise an ``UnavailableError`` if no font is installed, because labels would be left out silently."""
    if draw(svg_string=_PROBE.format("M")) == draw(svg_string=_PROBE.format("")):
        raise UnavailableError(
            "--png needs a font for the labels.",
            found=f"None of these is installed: {_FAMILIES}.",
            remedy="Install one (apt-get install fonts-dejavu-core), or leave --png out.",
        )


def _plain(svg: str) -> str:
    """Return an SVG with those parts of its stylesheet replaced that resvg does not know."""
    light = _QUERY.sub("", svg)
    values = dict(_VALUE.findall(light))
    light = _VARIABLE.sub(lambda found: values[found[1]], light)
    return _FONT.sub(f"font-size: 13px; font-family: {_FAMILIES};", light)

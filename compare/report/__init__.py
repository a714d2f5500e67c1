"""Renderers: one module per format, each a function from a run and its analysis to text.

``RENDERERS`` is what ``compare report --format`` offers; a new format is one module and one entry.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compare.analysis import Analysis
    from compare.schema.results import Run

RENDERERS = {
    "table": "compare.report.table",
    "markdown": "compare.report.markdown",
    "csv": "compare.report.csv",
    "json": "compare.report.json",
}


def render(run: Run, analysis: Analysis, form: str, *, detail: bool = False) -> str:
    """Render a run in one of the formats; the text ends without a newline.

    ``detail`` asks formats for people to show where the cost goes; those for programs always do.

    Raises:
        KeyError: there is no such format.
    """
    text: str = import_module(RENDERERS[form]).render(run, analysis, detail=detail)
    return text

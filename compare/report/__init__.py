"""Render a run and its analysis as text, one module per format.

``RENDERERS`` lists what ``compare report --format`` offers. A new format is one module and one entry.
"""

from __future__ import annotations

from importlib import import_module

from compare.analysis import Analysis
from compare.schema.results import Run

__all__ = ["RENDERERS", "render"]

RENDERERS = {
    "table": "compare.report.table",
    "markdown": "compare.report.markdown",
    "csv": "compare.report.csv",
    "json": "compare.report.json",
}


def render(run: Run, analysis: Analysis, form: str, *, detail: bool = False) -> str:
    """Render a run in one format, without a newline at the end.

    ``detail`` also shows where the sync cost goes; formats for programs always do.

    Raises:
        KeyError: there is no such format.
    """
    text: str = import_module(RENDERERS[form]).render(run, analysis, detail=detail)
    return text

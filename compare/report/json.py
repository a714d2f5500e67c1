"""Render the raw samples and everything derived from them as JSON."""

from __future__ import annotations

import msgspec

from compare.analysis import Analysis
from compare.schema.files import json_text
from compare.schema.results import Run


def render(run: Run, analysis: Analysis, *, detail: bool = False) -> str:
    """Render ``{"summary": …, "run": …}``, always with every detail."""
    del detail
    derived = msgspec.to_builtins(analysis)
    derived = derived.pop("summary") | derived
    return json_text({"summary": derived, "run": run})

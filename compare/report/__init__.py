"""Render a run and its analysis as text, one module per format.

``RENDERERS`` lists what ``compare report --format`` offers. A new format is one module and one entry,
and a choice in ``cli/choices.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import msgspec

from compare.analysis import Analysis
from compare.analysis.summary import ArmSummary
from compare.schema.results import Run

__all__ = ["RENDERERS", "arrange", "render"]

RENDERERS = {
    "table": "compare.report.table",
    "markdown": "compare.report.markdown",
    "html": "compare.report.html",
    "csv": "compare.report.csv",
    "json": "compare.report.json",
}
_FOR_PROGRAMS = {"csv", "json"}
_KEYS: dict[str, Callable[[ArmSummary], Any]] = {
    "step": lambda arm: arm.step_seconds.mean,
    "name": lambda arm: arm.arm,
    "sync": lambda arm: arm.sync_seconds.mean if arm.sync_seconds else 0.0,
}
"""The orders of ``--sort``."""


def render(
    run: Run,
    analysis: Analysis,
    form: str,
    *,
    wide: bool = False,
    detail: bool = False,
    sort: str | None = None,
    again: str = "RUN",
) -> str:
    """Render a run in one format, without a newline at the end.

    ``wide`` is for the table alone; all other formats show every column. ``detail`` also shows where the sync
    cost goes; formats for programs always do. They keep the order of the run unless ``sort`` is given.
    ``again`` is the run's name for ``compare report``.

    Raises:
        KeyError: there is no such format.
    """
    if form not in _FOR_PROGRAMS:
        analysis = arrange(analysis, sort)
    elif sort:
        analysis = _sorted(analysis, sort)
    of_table = {"wide": wide, "again": again} if form == "table" else {}
    text: str = import_module(RENDERERS[form]).render(run, analysis, detail=detail, **of_table)
    return text


def arrange(analysis: Analysis, by: str | None) -> Analysis:
    """Sort the arms, and leave out costs that are noise alone."""
    return _without_noise(_sorted(analysis, by))


def _sorted(analysis: Analysis, by: str | None) -> Analysis:
    """Sort the arms, by step time as default.

    Where nothing is ranked, the default is the order of the run.
    """
    summary = analysis.summary
    if by is None and (summary.noise_hides_all or summary.oversubscribed):
        return analysis
    arms = sorted(summary.arms, key=_KEYS[by or "step"])
    return msgspec.structs.replace(analysis, summary=msgspec.structs.replace(summary, arms=arms))


def _without_noise(analysis: Analysis) -> Analysis:
    """Leave out the costs of a few rounds that are all noisy.

    Formats for programs keep them, beside ``noise_hides_all``.
    """
    summary = analysis.summary
    if not summary.noise_hides_all or any(arm.step_seconds.method == "t" for arm in summary.arms):
        return analysis
    arms = list(map(_without_costs, summary.arms))
    return msgspec.structs.replace(analysis, summary=msgspec.structs.replace(summary, arms=arms))


def _without_costs(arm: ArmSummary) -> ArmSummary:
    costs = dict.fromkeys(("exposed_seconds", "background_seconds", "communication_seconds", "overlap"))
    detail = msgspec.structs.replace(arm.detail, **costs)
    return msgspec.structs.replace(arm, sync_seconds=None, sync_share=None, efficiency=None, detail=detail)

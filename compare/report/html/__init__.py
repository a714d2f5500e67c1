"""Render a run as one page, without scripts and without a network.

``pictures.py`` and ``charts.py`` compute where the marks of a picture lie; the templates write them as SVG.
``sheets.py`` makes pages of what is no run.
"""

from __future__ import annotations

from typing import Any

from compare.analysis import Analysis
from compare.report.causes import causes, differences, main_cause
from compare.report.columns import Column, against_baseline, arm_column, cost_columns, speed_columns
from compare.report.headline import headline, short_headline
from compare.report.html.page import Item, attested, facts_of, page_of, pictures_of
from compare.report.html.pictures import draw
from compare.report.notes import noise_first, notes, warnings
from compare.report.sentences import conclusion, marks, proof, why_marked
from compare.schema.results import Run

__all__ = ["Item", "of_run", "page_of", "pictures_of", "render"]


def render(run: Run, analysis: Analysis, *, detail: bool = False) -> str:
    """Render the page, always with every detail."""
    del detail
    return page_of([of_run(run, analysis)])


def of_run(run: Run, analysis: Analysis) -> Item:
    """Make a run's part of a page."""
    return Item(short_headline(run, analysis.summary), "run.html", _content(run, analysis))


def _content(run: Run, analysis: Analysis) -> dict[str, Any]:
    """Return everything that the page shows, as text and pictures."""
    summary = analysis.summary
    noise = noise_first(run, summary)
    heading, *differing = differences(analysis)
    return {
        "headline": short_headline(run, summary),
        "settings": headline(run),
        "verdict": conclusion(run, analysis),
        "noise": noise,
        "warnings": [warning for warning in warnings(run, analysis) if warning not in noise],
        "why": main_cause(analysis, run.config.baseline),
        "marks": marks(run, summary),
        "proof": proof(run, summary),
        "glance": _glance(run, analysis),
        "baseline": run.config.baseline,
        "pictures": draw(run, analysis),
        "causes": causes(analysis),
        "notes": notes(run, analysis),
        "figures": [
            _table(analysis, speed_columns(run, summary)),
            _table(analysis, cost_columns()),
        ],
        "condition_headings": heading,
        "differing": differing,
        "same": [condition.item for condition in analysis.conditions if condition.kind == "same"],
        "attested": [
            attested(arm.label, launches[-1].launcher, launches[-1].ranks[0].attestation)
            for arm in run.config.arms
            if (launches := run.of(arm))
        ],
        "facts": _facts(run),
    }


def _glance(run: Run, analysis: Analysis) -> list[dict[str, Any]]:
    """Return the rows of the first table."""
    arms = {arm.label: arm for arm in run.config.arms}
    return [
        {
            "arm": own.arm,
            "mark": bool(why_marked(arms[own.arm])),
            "step": f"{own.step_seconds.mean * 1e3:.2f}",
            "share": None if own.sync_share is None or own.below_noise else own.sync_share.mean,
            "below_noise": own.below_noise,
            "against": against_baseline(run, analysis.summary, own),
            "fastest": own.fastest,
        }
        for own in analysis.summary.arms
    ]


def _table(analysis: Analysis, columns: list[Column]) -> dict[str, Any]:
    columns = [arm_column(), *columns]
    return {
        "headings": [(column.heading, column.is_text) for column in columns],
        "rows": [[(column.cell(arm), column.is_text) for column in columns] for arm in analysis.summary.arms],
    }


def _facts(run: Run) -> list[tuple[str, str]]:
    """Return where and how the run was made."""
    hosts = ", ".join(f"{host.name} ({host.slots})" for host in run.hosts)
    return [
        *facts_of(run),
        ("hosts (ranks)", hosts),
        ("cores per host", str(run.cores)),
        ("network", run.network.interface or "loopback"),
    ]

"""Render a run as one page, without scripts and without a network.

``pictures.py`` computes where the marks of a picture lie; the templates write them as SVG.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from compare.analysis import Analysis
from compare.report.causes import causes, differences, main_cause
from compare.report.columns import Column, against_baseline, arm_column, cost_columns, speed_columns
from compare.report.headline import headline, short_headline, too_noisy
from compare.report.html.pictures import draw
from compare.report.notes import noisy_rounds, notes, warnings
from compare.report.sentences import conclusion, marks, proof, why_marked
from compare.schema.results import Run
from compare.text import printable

_LONGEST_FACT = 400
_DEEPEST_FACT = 3


def render(run: Run, analysis: Analysis, *, detail: bool = False) -> str:
    """Render the page, always with every detail."""
    del detail
    page: str = _templates().get_template("page.html").render(_content(run, analysis))
    return page.rstrip()


def pictures(run: Run, analysis: Analysis) -> dict[str, str]:
    """Render every picture as an SVG file, by its name."""
    template = _templates().get_template("picture.svg")
    return {picture.key: template.render(picture=picture).strip() for picture in draw(run, analysis)}


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("compare.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _harmless(value: Any) -> Any:
    """Escape control characters of names; Jinja escapes markup."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else printable(value)


def _content(run: Run, analysis: Analysis) -> dict[str, Any]:
    """Return everything that the page shows, as text and pictures."""
    summary = analysis.summary
    noise = [too_noisy(run, summary)] if summary.too_noisy else noisy_rounds(summary)
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
        "attested": _attested(run),
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
        ("command", " ".join(run.command)),
        ("started", run.started_at),
        ("Ringside", run.ringside_version),
        ("hosts (ranks)", hosts),
        ("cores per host", str(run.cores)),
        ("network", run.network.interface or "loopback"),
    ]


# ---- what the first rank of each arm attests ----


def _attested(run: Run) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Return what the first rank of each arm attests."""
    return [
        (arm.label, launches[-1].launcher, list(_flat(launches[-1].ranks[0].attestation)))
        for arm in run.config.arms
        if (launches := run.of(arm))
    ]


def _flat(value: Any, name: str = "", depth: int = 0) -> list[tuple[str, str]]:
    """Spread nested facts over lines; what lies deeper is one text."""
    if isinstance(value, dict) and value and depth < _DEEPEST_FACT:
        inner = (_flat(own, f"{name}.{key}" if name else str(key), depth + 1) for key, own in value.items())
        return [line for lines in inner for line in lines]
    text = str(value)
    return [(name, text if len(text) <= _LONGEST_FACT else f"{text[:_LONGEST_FACT]}…")]

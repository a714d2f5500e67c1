"""Make the documents of a run: the short view, the full one, and the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from compare.analysis import Analysis
from compare.analysis.estimate import Estimate
from compare.analysis.proven import Parity
from compare.analysis.summary import ArmSummary, Detail
from compare.report.causes import CONDITIONS_TITLE, NO_DIFFERENCE, causes, differences, main_cause
from compare.report.columns import BELOW_NOISE, COST_TITLE, against_baseline, cost_columns, speed_columns
from compare.report.document import Column, Document, Row, Style, Table
from compare.report.headline import headline, shared_options, short_headline
from compare.report.made import attested_by, facts_of
from compare.report.noise import would_have_seen
from compare.report.notes import noise_first, notes, warnings
from compare.report.pictures.of_run import draw
from compare.report.sentences import MARK, conclusion, marks, proof, why_marked
from compare.schema.results import Run
from compare.text import printable

_LONGEST_BASELINE = 12
_KEYS: Mapping[str, Callable[[ArmSummary], Any]] = {
    "step": lambda arm: arm.step_seconds.mean,
    "name": lambda arm: arm.arm,
    "sync": lambda arm: arm.sync_seconds.mean if arm.sync_seconds else 0.0,
}
"""What ``--sort`` sorts by, from the smallest; an arm without a sync cost counts as 0."""
_OF_VERDICTS = (
    "speed_ratio",
    "low",
    "high",
    "level",
    "p",
    "p_adjusted",
    "n",
    "settled_after",
    "rounds_to_settle",
)


def brief(run: Run, analysis: Analysis, *, sort: str | None = None, again: str = "RUN") -> Document:
    """Return the short view of a run, which fits 80 columns.

    ``again`` is the argument of ``compare report`` that shows the run again.
    """
    whole = document_of(run, analysis, sort=sort)
    shown = arrange(analysis, sort)
    return replace(
        whole,
        title=short_headline(run, shown.summary),
        glance=_glance(run, shown),
        tables=(),
        lead=[*marks(run, shown.summary), *would_have_seen(shown.summary), *_why(run, shown)],
        statements=(),
        notes=[f"More: compare report {again} --wide, or --detail"],
    )


def document_of(run: Run, analysis: Analysis, *, detail: bool = False, sort: str | None = None) -> Document:
    """Return the full view of a run, with every column and note.

    ``detail`` adds tables of where the sync cost goes, and of conditions that differ. The records and the
    content, which programs read, also have costs that are only noise. They keep the run's order unless
    ``sort`` is given.
    """
    shown = arrange(analysis, sort)
    summary = shown.summary
    first = noise_first(run, summary)
    tables = [_table(shown, speed_columns(run, summary))] if summary.arms else []
    if detail and summary.arms:
        tables += [_table(shown, cost_columns(), COST_TITLE), _conditions(analysis)]
    return Document(
        title=headline(run),
        alerts=first,
        tables=tables,
        warnings=[warning for warning in warnings(run, shown) if warning not in first],
        statements=causes(shown),
        notes=notes(run, shown),
        conclusion=conclusion(run, shown),
        records=lambda: _records(run, _sorted(analysis, sort) if sort else analysis),
        content=lambda: _content(run, _sorted(analysis, sort) if sort else analysis),
    )


def page(run: Run, analysis: Analysis, *, sort: str | None = None) -> Document:
    """Return the page of a run: all that the detailed view shows, with pictures and with how it was made."""
    shown = arrange(analysis, sort)
    same = [condition.item for condition in analysis.conditions if condition.kind == "same"]
    return replace(
        document_of(run, analysis, detail=True, sort=sort),
        title=short_headline(run, shown.summary),
        glance=_glance(run, shown),
        lead=[*_why(run, shown), *marks(run, shown.summary)],
        draw=lambda: draw(run, shown),
        facts=[
            *facts_of(run),
            ("settings", headline(run)),
            ("hosts (ranks)", ", ".join(f"{host.name} ({host.slots})" for host in run.hosts)),
            ("cores per host", str(run.cores)),
            ("network", run.network.interface or "loopback"),
            *([("same in all arms, ranks and rounds", ", ".join(same))] if same else []),
        ],
        attested=attested_by(run),
    )


def arrange(analysis: Analysis, by: str | None) -> Analysis:
    """Return the analysis with its arms sorted, and without costs that are only noise."""
    return _without_noise(_sorted(analysis, by))


def _sorted(analysis: Analysis, by: str | None) -> Analysis:
    """Return the analysis with its arms sorted, by step time as default.

    If nothing is ranked, the default is the order of the run.
    """
    summary = analysis.summary
    if by is None and (summary.noise_hides_all or summary.oversubscribed):
        return analysis
    arms = sorted(summary.arms, key=_KEYS[by or "step"])
    return msgspec.structs.replace(analysis, summary=msgspec.structs.replace(summary, arms=arms))


def _without_noise(analysis: Analysis) -> Analysis:
    """Return the analysis without its costs, if it has only one or two rounds and all are noisy.

    Formats for programs keep these costs, and ``noise_hides_all`` warns of them.
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


# ---- tables ----


def _glance(run: Run, analysis: Analysis) -> Table | None:
    """Return the short table: each arm's step time, the share that is sync cost, and the verdict.

    None if no launch has finished.
    """
    if not analysis.summary.arms:
        return None
    baseline = run.config.baseline
    headings = [
        Column("arm", str, is_text=True),
        Column("step ms", str),
        Column("of it sync", str),
        Column(
            f"against {baseline if len(baseline) <= _LONGEST_BASELINE else 'baseline'}", str, is_text=True
        ),
    ]
    return Table(columns=headings, rows=[_at_a_glance(run, analysis, arm) for arm in analysis.summary.arms])


def _at_a_glance(run: Run, analysis: Analysis, own: ArmSummary) -> Row:
    arm = next(arm for arm in run.config.arms if arm.label == own.arm)
    share = None if own.sync_share is None or own.below_noise else own.sync_share.mean
    sync = f"{share * 100:.0f} %" if share is not None else BELOW_NOISE if own.below_noise else "–"
    style: Style = "best" if own.fastest else "" if arm.traits.synchronises else "aside"
    shared = shared_options(run)
    given = {name: value for name, value in arm.given.items() if not shared or name not in shared.given}
    name = (
        printable(msgspec.structs.replace(arm, given=given).label) if arm.traits.synchronises else arm.label
    )
    suffix = "" if arm.traits.synchronises else " (no communication)"
    mark = f" {MARK}" if why_marked(arm) else ""
    return Row(
        (
            name + suffix + mark,
            f"{own.step_seconds.mean * 1e3:.2f}",
            sync,
            against_baseline(run, analysis.summary, own),
        ),
        style,
        shares=(None, None, share, None),
    )


def _table(analysis: Analysis, columns: list[Column[ArmSummary]], title: str = "") -> Table:
    arm = Column[ArmSummary]("arm", lambda own: own.arm + (" ◀ fastest" if own.fastest else ""), is_text=True)
    return Table.of(
        [arm, *columns],
        analysis.summary.arms,
        title=title,
        style=lambda own: "best" if own.fastest else "",
    )


def _conditions(analysis: Analysis) -> Table:
    headings, *rows = differences(analysis)
    columns = [Column(heading, str, is_text=True) for heading in headings]
    return Table(
        columns=columns if rows else columns[:1],
        rows=[Row(tuple(row)) for row in rows] or [Row((NO_DIFFERENCE,))],
        title=CONDITIONS_TITLE,
        is_prose=True,
    )


def _why(run: Run, analysis: Analysis) -> list[str]:
    why = main_cause(analysis, run.config.baseline)
    return [*filter(None, [why]), *proof(run, analysis.summary)]


# ---- for programs ----


def _content(run: Run, analysis: Analysis) -> dict[str, Any]:
    derived = msgspec.to_builtins(analysis)
    return {"summary": derived.pop("summary") | derived, "run": run}


def _records(run: Run, analysis: Analysis) -> list[dict[str, object]]:
    """Return one record for each arm, in which an estimate takes three columns: mean, low and high."""
    summary = analysis.summary
    of_run = {
        "dataset": run.dataset.name,
        "complete": run.complete,
        "noise_hides_all": summary.noise_hides_all,
    }
    return [_flat(arm) | of_run for arm in summary.arms]


def _flat(value: ArmSummary | Detail, prefix: str = "") -> dict[str, object]:
    """Return the figures of an arm by column; columns are the same for every arm, so None fills gaps."""
    row: dict[str, object] = {}
    for field in msgspec.structs.fields(value):
        found = getattr(value, field.name)
        name = f"{prefix}{field.name}"
        if isinstance(found, Detail):
            row |= _flat(found, "detail_")
        elif isinstance(found, Parity):
            row |= {name: found.outcome, f"{name}_steps": found.steps, f"{name}_difference": found.difference}
        elif field.name == "verdict":
            fields = msgspec.structs.asdict(found) if found else {}
            row |= {"verdict": fields.get("kind")}
            row |= {f"verdict_{key}": fields.get(key) for key in _OF_VERDICTS}
        elif "Estimate" in str(field.type):
            fields = msgspec.structs.asdict(found) if isinstance(found, Estimate) else {}
            row |= {
                name: fields.get("mean"),
                f"{name}_low": fields.get("low"),
                f"{name}_high": fields.get("high"),
            }
        elif isinstance(found, list):
            row[name] = " ".join(map(str, found))
        else:
            row[name] = found
    return row

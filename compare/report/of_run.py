"""Make the documents of a run: the short view, the full one, and the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from compare.analysis import Analysis
from compare.analysis.memory import ArmMemory, Held
from compare.analysis.summary import ArmSummary, Summary
from compare.analysis.verdict import Verdict
from compare.report.causes import conditions_table, explain, main_cause
from compare.report.cells import as_record, format_difference
from compare.report.columns import BELOW_NOISE, COST_TITLE, against_baseline, cost_columns, speed_columns
from compare.report.document import Column, Document, Row, Style, Table, View
from compare.report.memory import DOES_NOT_FIT, memory_notes, memory_table, unfit_sentences
from compare.report.origin import (
    attested_by,
    facts_of,
    headline,
    model_and_data,
    noise_warnings,
    shared_options,
    source_of,
    warnings,
)
from compare.report.run_pictures import draw
from compare.report.sentences import (
    MARK,
    conclusion,
    detectable_differences,
    mark_notes,
    marked_labels,
    notes,
    proof,
    why_marked,
)
from compare.schema.arms import Arm
from compare.schema.results import Run
from compare.text import duration, listed, percent

_LONGEST_BASELINE = 12
_HASH_DIGITS = 12
_HOUR = 3600
_PARITY_COLUMNS = {"": "outcome", "_steps": "steps", "_difference": "difference"}
_NOT_IN_CSV = {"kind", "margin", "uneven_load", "least"}
"""Fields of a verdict that have no column ``verdict_…``; the kind has the column ``verdict``."""


def brief(run: Run, analysis: Analysis, view: View) -> Document:
    """Return the short view of a run, which fits a terminal of 80 columns."""
    shown = arrange(analysis)
    return replace(
        document_of(run, analysis, view),
        title=headline(run, shown.summary),
        tables=[*filter(None, [_short_table(run, shown)])],
        lead=[
            *mark_notes(run, shown.summary),
            *detectable_differences(shown.summary),
            *unfit_sentences(shown.summary.unfit),
            *_cause_and_proof(run, shown),
        ],
        statements=list(_in_plain_words(run, shown)),
        notes=[f"More: ringside report {view.report_argument} --detail"] if shown.summary.arms else [],
    )


def document_of(run: Run, analysis: Analysis, view: View) -> Document:
    """Return the full view of a run, with every column and note.

    ``view.detail`` adds a table with the parts of the sync cost, and one of the conditions that differ. The
    records and the content are for programs. So they also have costs that are only noise, and their arms are
    in the run's order.
    """
    shown = arrange(analysis)
    summary = shown.summary
    alerts = noise_warnings(run, summary)
    tables = (
        [_table(shown, speed_columns(run, summary)), *_training_table(run, summary)] if summary.arms else []
    )
    if view.detail and summary.arms:
        tables += [
            _table(shown, cost_columns(), COST_TITLE),
            *memory_table(summary),
            conditions_table(analysis),
        ]
    return Document(
        title=headline(run),
        alerts=alerts,
        tables=tables,
        warnings=[warning for warning in warnings(run, shown) if warning not in alerts],
        lead=[*unfit_sentences(summary.unfit), *proof(run, summary)],
        statements=list(explain(shown.causes, noisy=bool(summary.noisy_rounds))),
        notes=[*notes(run, shown), *(memory_notes(summary) if view.detail else ())],
        conclusion=conclusion(run, shown),
        records=lambda: _records(run, analysis),
        content=lambda: _content(run, analysis),
    )


def page(run: Run, analysis: Analysis, view: View) -> Document:
    """Return the page of a run: the detailed view, with pictures and with facts about how it was made."""
    shown = arrange(analysis)
    arms = [arm.label for arm in run.config.synchronising or run.config.arms]
    same = [condition.item for condition in analysis.conditions if condition.kind == "same"]
    return replace(
        document_of(run, analysis, replace(view, detail=True)),
        title=headline(run, shown.summary),
        name=f"{listed(arms)}: {model_and_data(run)}",
        source=source_of(run, run, headline(run, shown.summary)),
        glance=_short_table(run, shown),
        lead=[
            *_in_plain_words(run, shown),
            *unfit_sentences(shown.summary.unfit),
            *_cause_and_proof(run, shown),
            *mark_notes(run, shown.summary),
        ],
        draw=lambda: draw(run, shown),
        facts=[
            *facts_of(run),
            ("settings", headline(run)),
            ("hosts (ranks)", listed(f"{host.name} ({host.slots})" for host in run.hosts)),
            ("cores per host", str(run.cores)),
            ("network", run.network.interface or "loopback"),
            *([("same in all arms, ranks and rounds", ", ".join(same))] if same else []),
        ],
        attested=attested_by(run),
    )


def arrange(analysis: Analysis) -> Analysis:
    """Return the analysis for display: arms sorted by step time, and without costs that are only noise.

    If nothing is ranked, the arms keep the order of the run.
    """
    summary = analysis.summary
    if summary.ranks_nothing:
        return _without_noise(analysis)
    arms = sorted(summary.arms, key=lambda arm: arm.step_seconds.mean)
    return _without_noise(
        msgspec.structs.replace(analysis, summary=msgspec.structs.replace(summary, arms=arms))
    )


def _without_noise(analysis: Analysis) -> Analysis:
    """Return the analysis without its costs if noise hides everything and there are only one or two rounds.

    Formats for programs keep these costs, and their field ``noise_hides_all`` warns of them.
    """
    summary = analysis.summary
    if not summary.noise_hides_all or any(arm.step_seconds.method == "t" for arm in summary.arms):
        return analysis
    costs = dict.fromkeys(("sync_seconds", "sync_share", "efficiency"))
    parts = dict.fromkeys(("exposed_seconds", "background_seconds", "communication_seconds", "overlap"))
    arms = [
        msgspec.structs.replace(arm, **costs, detail=msgspec.structs.replace(arm.detail, **parts))
        for arm in summary.arms
    ]
    return msgspec.structs.replace(analysis, summary=msgspec.structs.replace(summary, arms=arms))


# ---- tables ----


def _short_table(run: Run, analysis: Analysis) -> Table | None:
    """Return the short table: each arm's step time, the share that is sync cost, and the verdict.

    Arms that did not fit into memory stand below.

    None if no launch has finished.
    """
    if not analysis.summary.arms:
        return None
    baseline = run.config.baseline if len(run.config.baseline) <= _LONGEST_BASELINE else "baseline"
    headings = {"arm": True, "step ms": False, "of it sync": False, f"against {baseline}": True}
    return Table(
        columns=[Column(heading, str, is_text=is_text) for heading, is_text in headings.items()],
        rows=[
            *(_short_row(run, analysis, arm) for arm in analysis.summary.arms),
            *(Row((unfit.arm, "–", "–", DOES_NOT_FIT), "bad") for unfit in analysis.summary.unfit),
        ],
    )


def _short_row(run: Run, analysis: Analysis, figures: ArmSummary) -> Row:
    """Return the row of one arm; its name leaves out the options that all synchronising arms share."""
    arm = next(arm for arm in run.config.arms if arm.label == figures.arm)
    share = None if figures.sync_share is None or figures.below_noise else figures.sync_share.mean
    sync = percent(share) if share is not None else BELOW_NOISE if figures.below_noise else "–"
    style: Style = "best" if figures.fastest else "" if arm.traits.synchronises else "aside"
    name = f"{arm.label} (no communication)"
    if arm.traits.synchronises:
        shared = shared_options(run)
        given = {key: value for key, value in arm.given.items() if not shared or key not in shared.given}
        name = msgspec.structs.replace(arm, given=given).label
    if why_marked(arm):
        name += f" {MARK}"
    step = f"{figures.step_seconds.mean * 1e3:.2f}"
    cells = (name, step, sync, against_baseline(run, analysis.summary, figures))
    return Row(cells, style, shares=(None, None, share, None))


def _table(analysis: Analysis, columns: list[Column[ArmSummary]], title: str = "") -> Table:
    name = Column[ArmSummary](
        "arm", lambda arm: arm.arm + (" ◀ fastest" if arm.fastest else ""), is_text=True
    )
    return Table.of(
        [name, *columns],
        analysis.summary.arms,
        title=title,
        style=lambda arm: "best" if arm.fastest else "",
    )


def _training_table(run: Run, summary: Summary) -> Iterator[Table]:
    """Yield a table of what each synchronising arm trained, its proof, and the hash of its parameters.

    Nothing is yielded if no such arm has a launch.
    """
    arms = {arm.label: arm for arm in run.config.synchronising}
    columns: list[Column[ArmSummary]] = [
        Column("arm", lambda arm: marked_labels(run, [arm.arm])[0], is_text=True),
        Column("training", lambda arm: _training(arms[arm.arm]), is_text=True),
        Column("proven steps", lambda arm: str(arm.parity.steps or "–")),
        Column(
            "difference", lambda arm: format_difference(arm.parity.difference) if arm.parity.steps else "–"
        ),
        Column("launches by hash", lambda arm: str(arm.parity.by_hash or "–")),
        Column("parameters", lambda arm: (arm.final_hash or "several")[:_HASH_DIGITS], is_text=True),
    ]
    if rows := [arm for arm in summary.arms if arm.arm in arms]:
        yield Table.of(columns, rows, title="What the arms trained (docs/proof.md)")


def _training(arm: Arm) -> str:
    """Return in a few words what an arm trains, and how it may end with other parameters than exact arms."""
    if arm.traits.one_process:
        return "the same, added up in one process"
    if arm.same_training and arm.traits.in_shards:
        return "the same, held in shards"
    return why_marked(arm) or "the same"


def _cause_and_proof(run: Run, analysis: Analysis) -> list[str]:
    cause = main_cause(analysis, run.config.baseline)
    return [*filter(None, [cause]), *proof(run, analysis.summary)]


def _in_plain_words(run: Run, analysis: Analysis) -> Iterator[str]:
    """Yield a line for readers who do not know what an arm is; nothing if there was nothing to compare.

    It says what is compared, and how long the fastest arm takes for what the baseline does in an hour, unless
    the ratio of the two is open.
    """
    summary = analysis.summary
    ways = [arm for arm in summary.arms if arm.arm in {one.label for one in run.config.synchronising}]
    if len(ways) < 2 or analysis.aa:  # noqa: PLR2004 -- a comparison takes two
        return
    what = f"In plain words: the ranks can keep their models alike in {len(ways)} ways here (arms)"
    fastest = summary.lead.fastest if summary.lead else None
    takes = time_for_an_hour(next((arm.verdict for arm in ways if arm.arm == fastest), None))
    if not takes:
        which = "no arm is shown to be the fastest" if fastest is None else f"{fastest} trains fastest"
        yield f"{what}, and {which}."
    else:
        yield f"{what}. What takes 1 h with {run.config.baseline} takes {takes} with {fastest}."


def time_for_an_hour(verdict: Verdict | None) -> str:
    """Return how long an arm takes for what the baseline does in an hour: ``18 min (17–19)``.

    It is empty without a verdict on the arm, and while that is open.
    """
    if verdict is None or verdict.kind == "open" or verdict.low is None or verdict.high is None:
        return ""
    ends = (verdict.speed_ratio, verdict.high, verdict.low)
    time, least, most = (max(60, 60 * round(60 / ratio)) for ratio in ends)
    interval = f"{least // 60}–{most // 60}" if most < _HOUR else f"{duration(least)} to {duration(most)}"
    return f"{duration(time)} ({interval})" if least < most else duration(time)


# ---- for programs ----


def _content(run: Run, analysis: Analysis) -> dict[str, Any]:
    derived = msgspec.to_builtins(analysis)
    return {"summary": derived.pop("summary") | derived, "run": run}


def _records(run: Run, analysis: Analysis) -> list[dict[str, object]]:
    """Return one record for each arm, with the same columns; an arm that does not fit has no figures."""
    summary = analysis.summary
    noise = summary.noise_hides_all
    run_columns = {"dataset": run.dataset.name, "complete": run.complete, "noise_hides_all": noise}
    records = [as_record(arm, instead=_flat_columns(arm)) | run_columns for arm in summary.arms]
    blank = dict.fromkeys(records[0]) if records else {}
    unfit = [{"arm": unfit.arm, "verdict": DOES_NOT_FIT} for unfit in summary.unfit]
    return [*records, *(blank | of_unfit | run_columns for of_unfit in unfit)]


def _flat_columns(arm: ArmSummary) -> dict[str, dict[str, object]]:
    """Return the columns that replace fields which are not one figure; they are None without a verdict."""
    verdict, parity = arm.verdict, arm.parity
    figures = [name for name in Verdict.__struct_fields__ if name not in _NOT_IN_CSV]
    return {
        "verdict": {"verdict": verdict.kind if verdict else None}
        | {f"verdict_{name}": getattr(verdict, name, None) for name in figures},
        "memory": _flat_memory(arm.memory),
        "parity": {f"parity{end}": getattr(parity, name) for end, name in _PARITY_COLUMNS.items()},
    }


def _flat_memory(memory: ArmMemory | None) -> dict[str, object]:
    """Return the columns of an arm's memory in bytes; all are None where it is not known."""
    of_kinds = {
        f"{name}_{kind}": getattr(held, kind, None)
        for name, held in (("held", memory and memory.held), ("predicted", memory and memory.predicted))
        for kind in Held.__struct_fields__
    }
    return of_kinds | {
        name: getattr(memory, name, None) for name in ("library_bytes", "activation_bytes", "rest_bytes")
    }

"""Make the document of ``ringside verify``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from compare.analysis.parity import AT_PERIOD_1, fail_alike
from compare.report.cells import as_record, format_difference
from compare.report.document import Column, Document, Table, View
from compare.report.origin import attested_by, attested_notes, facts_of, headline
from compare.schema.results import ArmVerification, Gate, Verification
from compare.text import listed

_SHOWN_STEPS = (1, 5, 10, 20)
_PROVEN = "the same training"
_UNPROVEN_TEXTS = {
    "nothing": "nothing to prove",
    "incomparable": "not comparable",
    "unfit": "does not fit",
}
"""Text for an arm that is not proven although no gate failed, by the outcome of its gate."""


def document_of(verification: Verification, view: View) -> Document:
    """Return the document of a verification, with one row of gates (parts of the proof) for each arm.

    With ``view.detail``, it also has the distances from one process over the steps, and notes on each column.
    """
    columns: list[Column[ArmVerification]] = [
        Column("arm", lambda arm: arm.arm, is_text=True),
        Column("verdict", verdict_of, is_text=True),
        Column("ranks", partial(_cell, "ranks"), is_text=True),
        *(Column(gate, partial(_cell, gate)) for gate in ("float64", "float32", "end")),
        *(Column(f"step {step}", partial(_distance_cell, step)) for step in _SHOWN_STEPS if view.detail),
    ]
    return Document(
        title=f"verification · {headline(verification.run)}",
        tables=[Table.of(columns, verification.arms, style=lambda arm: "bad" if arm.refuted else "")],
        warnings=list(_warnings(verification)),
        failures=list(_failures(verification)),
        notes=[*_findings(verification), *(_legend(verification) if view.detail else [_more(view)])],
        conclusion=_conclusion(verification),
        facts=facts_of(verification.run),
        attested=attested_by(verification.run),
        records=lambda: [row for arm in verification.arms for row in _records(arm)],
        content=lambda: verification,
    )


def _records(arm: ArmVerification) -> Iterator[dict[str, object]]:
    """Yield a record for each gate of an arm, and one for a launch that failed."""
    for gate in arm.gates:
        yield {"arm": arm.arm} | as_record(gate)
    if arm.failure:
        failed = Gate(name="ranks", outcome="failed", what=arm.failure.message)
        yield {"arm": arm.arm} | as_record(failed) | {"name": "launch"}


def _distance_cell(step: int, arm: ArmVerification) -> str:
    """Return the cell with an arm's distance from a single process after a step, counted from 1."""
    return format_difference(arm.curve[step - 1]) if step <= len(arm.curve) else "–"


def _cell(name: str, arm: ArmVerification) -> str:
    """Return the figure or the outcome of an arm's gate with this name; – if the arm has none."""
    gate = next((gate for gate in arm.gates if gate.name == name), None)
    if gate is None:
        return "–"
    if gate.outcome in _UNPROVEN_TEXTS:
        return "–" if name == "ranks" else _UNPROVEN_TEXTS[gate.outcome]
    if gate.outcome == "exempt":
        if gate.figure is None:
            return "–" if name == "end" else gate.what or "exempt"
        return f"{format_difference(gate.figure)} {'other' if gate.what else 'lossy'}"
    if gate.outcome == "failed":
        return "FAILED" if gate.figure is None else f"{format_difference(gate.figure)} FAILED"
    return "same" if gate.limit is None else format_difference(gate.figure)


def verdict_of(arm: ArmVerification) -> str:
    """Return what all gates of an arm together show, in a few words."""
    if arm.failure:
        return "did not run"
    if arm.refuted:
        return "NOT the same training"
    if arm.unproven:
        return _UNPROVEN_TEXTS[arm.unproven.outcome]
    for gate in arm.gates:
        if gate.outcome == "exempt" and gate.name not in {"ranks", "end"}:
            return gate.what or ("exempt" if gate.figure is None else "lossy by design")
    return AT_PERIOD_1 if any(gate.what == AT_PERIOD_1 for gate in arm.gates) else _PROVEN


def _warnings(verification: Verification) -> Iterator[str]:
    """Yield a line for each thing that limits what the verification proves."""
    run = verification.run
    if not run.complete:
        yield "INCOMPLETE: the command was stopped before every arm had run."
    if run.dataset.note:
        yield f"{run.dataset.note}."
    arms = {arm.label: arm for arm in run.config.arms}
    failed = [
        (arms[arm.arm], gate.name)
        for arm in verification.arms
        for gate in arm.gates
        if gate.outcome == "failed" and arm.arm in arms
    ]
    yield from filter(None, [fail_alike(run, failed)])
    for arm in verification.arms:
        if not arm.refuted and (gate := arm.unproven):
            yield f"{arm.arm}, {_UNPROVEN_TEXTS[gate.outcome]}: {gate.what}. {gate.remedy}"
    yield from (f"{name} did not run: {reason}." for name, reason in run.left_out.items())


def _failures(verification: Verification) -> Iterator[str]:
    """Yield the error of each failed launch and gate.

    If several gates of an arm fail for the same reason, only one of them is reported.
    """
    for arm in verification.arms:
        if arm.failure:
            yield arm.failure.message
        failed = {gate.name: gate for gate in arm.gates if gate.outcome == "failed"}
        if "float64" in failed:
            failed.pop("float32", None)  # it fails for the same reason, with more rounding
        if "samples" in failed:
            failed = {"samples": failed["samples"]}
        for gate in failed.values():
            yield " ".join(filter(None, [gate.what, gate.found, gate.remedy]))


def _conclusion(verification: Verification) -> str:
    """Return one line with the arms that failed, did not run or are unproven; without any, those proven."""
    arms = verification.arms
    if not arms:
        return "No arm has finished, so nothing is proven."
    refuted = [arm.arm for arm in arms if arm.refuted and not arm.failure]
    groups = {
        "NOT the same training as in one process": refuted,
        "did not run": [arm.arm for arm in arms if arm.failure],
        "not proven": [arm.arm for arm in arms if not arm.refuted and arm.unproven],
    }
    proven = [arm.arm for arm in arms if verdict_of(arm) in {_PROVEN, AT_PERIOD_1}]
    if not any(groups.values()) and proven:
        so_far = "" if verification.run.complete else "So far: "
        return f"{so_far}✓ {listed(proven)}: {_PROVEN} as in one process."
    each = "; ".join(f"{listed(names)}: {words}" for words, names in groups.items() if names)
    return each and f"{'✗ ' if refuted else ''}{each}."


def _findings(verification: Verification) -> Iterator[str]:
    """Yield the lines on what passed in another way than by its figure, and on what ranks attest."""
    for arm in verification.arms:
        for gate in arm.gates:
            if gate.outcome == "passed" and gate.what not in {"", AT_PERIOD_1}:
                yield f"{arm.arm}, {gate.name}: {gate.what}"
    yield from attested_notes(verification.run)


def _more(view: View) -> str:
    return f"What each figure means: ringside report {view.report_argument} --detail"


def _legend(verification: Verification) -> Iterator[str]:
    """Yield the lines that explain the columns of the table."""
    yield "ranks: all start from one model, train, and end with the same parameters, bit for bit."
    limits: dict[str, float] = {}
    for gate in (gate for arm in verification.arms for gate in arm.gates):
        if gate.limit is not None:
            limits[gate.name] = max(gate.limit, limits.get(gate.name, 0.0))
    if limits:
        allowed = " and ".join(f"{limit:.0e} in {name}" for name, limit in limits.items())
        yield (
            "float64, float32: largest relative difference of a step from that of a single process, in 20 "
            f"steps of plain SGD. end: distance of the gradients in one more step after the training. "
            f"Rounding allows up to {allowed}."
        )
    yield (
        f"step 1 to {_SHOWN_STEPS[-1]}: distance from one process on the combined batch, with the run's "
        "optimizer. It is no gate: rounding grows, and dropout and BatchNorm differ."
    )

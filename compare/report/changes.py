"""Render the changes between an old and a new state, which a gate or two runs beside each other show.

If two runs are unlike, every format says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, TypeAlias
from xml.etree import ElementTree as ET

import msgspec

from compare.analysis.budget import FIRST_LOOK
from compare.analysis.change import Change, Changes, Difference
from compare.analysis.figures import Estimate
from compare.report.cells import format_ratio
from compare.report.document import Column, Document, Table
from compare.schema.results import Failure
from compare.system.files import json_text
from compare.text import counted, percent, printable

_NO_DECISION = (
    "This describes two runs and decides nothing. `ringside gate` decides, and it sees a slower computation "
    "as well."
)
_VERDICTS = {"not slower": "passed"}
OpenReason: TypeAlias = Literal["few cores", "few rounds", "uneven load", "noise"]
"""Why an arm of a gate is open, as its cell in the table says it."""
_RESERVE = 1.1
"""The budget that is named is this much longer than the rounds took so far, because rounds vary."""
_JUNIT_ELEMENT = {"slower": "failure", "open": "error"}
"""XML element for an arm that did not pass, by the kind of its change.

An arm without a decision is an error, because a skipped test would be shown as green.
"""


def document_of(changes: Changes) -> Document:
    """Return the document of a gate or of two runs: one row for each arm, and the conclusion."""
    changed = f"Changed: {'; '.join(map(_old_and_new, changes.changed))}."
    return Document(
        title=(
            "Time of a step in ms, in two environments"
            if changes.command == "gate"
            else f"Cost of synchronising in two runs: speed over {changes.reference}'s in the same round"
        ),
        alerts=_unlike_warning(changes),
        tables=[Table.of(_columns(changes), changes.changes)],
        lead=[f"old: {changes.old}", f"new: {changes.new}"],
        notes=[
            *([changed] if changes.changed else []),
            *_load_notes(changes),
            *changes.notes,
            *_key(changes),
        ],
        conclusion=_conclusion(changes),
        content=lambda: msgspec.to_builtins(changes) | {"forced": bool(changes.unlike)},
    )


def benchmark(gate: Changes) -> str:
    """Return the JSON that github-action-benchmark reads for its tool ``customSmallerIsBetter``.

    It has one entry for each arm of a gate, with its new step time alone. The action itself keeps figures of
    earlier gates.
    """
    entries = [
        {
            "name": printable(f"gate: {change.arm}"),
            "unit": "ms",
            "value": change.new.mean * 1e3,
            "range": f"± {(change.new.high - change.new.low) / 2 * 1e3:.2f}",
            "extra": printable(_in_one_line(gate, change)),
        }
        for change in gate.changes
        if change.new
    ]
    return json_text(entries)


def junit(gate: Changes | None, failure: Failure | None = None) -> str:
    """Return JUnit XML of a gate, with one test for each arm.

    The test of a slower arm is a failure, and that of an arm without a decision is an error. ``gate`` is None
    if the gate did not finish. Then there is a single test with an error, which quotes the ``failure`` if
    there was one.
    """
    suite = ET.Element("testsuite", name="ringside gate", skipped="0")
    why = failure.message if failure else "It ended before its last round."
    cases = [("complete", "error", f"INCOMPLETE: {why}", "incomplete")]
    if gate:
        properties = ET.SubElement(suite, "properties")
        facts = {"old": gate.old, "new": gate.new, "limit": f"{gate.limit:g}", "key": " ".join(_key(gate))}
        for name, value in facts.items():
            ET.SubElement(properties, "property", name=name, value=printable(value))
        cases = [
            (change.arm, _JUNIT_ELEMENT.get(change.kind, ""), _junit_message(gate, change), change.kind)
            for change in gate.changes
        ]
    for name, element, message, kind in cases:
        case = ET.SubElement(suite, "testcase", classname="ringside.gate", name=printable(name))
        if element:
            ET.SubElement(case, element, message=printable(message), type=kind)
        ET.SubElement(case, "system-out").text = printable(message)
    for name, path in {"tests": "testcase", "failures": ".//failure", "errors": ".//error"}.items():
        suite.set(name, str(len(suite.findall(path))))
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode")


# ---- words ----


def _conclusion(changes: Changes) -> str:
    """Return the conclusion of a gate; for two runs, a note that it decides nothing."""
    if changes.limit is None:
        return _NO_DECISION
    limit = percent(changes.limit, "g")
    if changes.outcome == "slower":
        slower = [change.arm for change in changes.changes if change.kind == "slower"]
        return f"SLOWER, by an estimate of more than {limit}: {', '.join(slower)}."
    if changes.outcome == "too noisy":
        return " ".join(_open_sentences(changes, limit)) or "OPEN: not every arm was compared."
    return f"Passed: no arm is slower by {limit}."


def _open_sentences(gate: Changes, limit: str) -> Iterator[str]:
    """Yield for each reason that leaves arms of a gate open: these arms, and what would decide them."""
    after = f"after {counted(gate.rounds, 'round')}" if gate.rounds else "so far"
    by_reason: dict[OpenReason, list[Change]] = {}
    for change in gate.changes:
        if reason := _why_open(gate, change):
            by_reason.setdefault(reason, []).append(change)
    for reason, changes in by_reason.items():
        arms = ", ".join(change.arm for change in changes)
        if reason == "few cores":
            yield f"OPEN, because ranks and threads outnumber the cores: {arms}."
        elif reason == "few rounds":
            yield f"OPEN {after}, because nothing is judged before round {FIRST_LOOK}: {arms}."
            yield f"{FIRST_LOOK} rounds are the least{_budget_for(gate)}."
        elif reason == "uneven load":
            yield f"OPEN {after}, because the load was uneven: {arms}."
            yield from map(_load_sentence, changes)
            yield "Run again on a quieter machine."
        else:
            yield f"TOO NOISY to tell {after} whether an arm is slower by {limit}: {arms}."
            yield (
                f"About {counted(gate.needed_rounds, 'round')} would decide it{_budget_for(gate)}."
                if gate.needed_rounds is not None
                else "How many rounds it takes is not known, but a quieter machine or a larger limit may do."
            )


def _budget_for(gate: Changes) -> str:
    """Return a clause with the flags that give a gate the rounds it needs; empty if they are not known."""
    if gate.needed_seconds is None:
        return ""
    budget = math.ceil(_RESERVE * gate.needed_seconds / 10) * 10
    return f", for which --budget {budget} has time, or --repeats {gate.needed_rounds}"


def _why_open(gate: Changes, change: Change) -> OpenReason | None:
    """Return why an arm of a gate is open; None if it is not, and for two runs."""
    if change.kind != "open" or gate.command != "gate":
        return None
    if gate.beyond_cores:
        return "few cores"
    if min(change.rounds) < FIRST_LOOK:
        return "few rounds"
    return "uneven load" if change.uneven_load else "noise"


def _load_sentence(change: Change) -> str:
    """Return the load of other programs beside both sides of an arm, which may explain its verdict."""
    beside_new, beside_old = change.uneven_load or (0.0, 0.0)
    return (
        f"Other programs used {beside_new:.2f} cores beside the new side of {change.arm} and "
        f"{beside_old:.2f} beside the old one, which may explain or hide a difference."
    )


def _load_notes(changes: Changes) -> Iterator[str]:
    """Yield the uneven load of each arm that has a verdict; the conclusion states that of the open arms."""
    yield from (_load_sentence(one) for one in changes.changes if one.uneven_load and one.kind != "open")


def _key(changes: Changes) -> Iterator[str]:
    """Yield how to read the ratios of a gate; nothing for two runs."""
    if changes.limit is not None:
        yield (
            "new against old: the old step time over the new one, so above 1 the new side is faster. To "
            f"pass, an arm needs {1 / (1 + changes.limit):.3f}× in `at least`, a lower bound of this ratio."
        )


def _old_and_new(fact: Difference) -> str:
    return f"{fact.what}: {fact.old} → {fact.new}"


def _unlike_warning(changes: Changes) -> list[str]:
    """Return a warning that two runs are unlike; empty if they are alike."""
    if not changes.unlike:
        return []
    differences = "; ".join(map(_old_and_new, changes.unlike))
    return [f"The runs are UNLIKE, so their difference may mean nothing: {differences}."]


# ---- cells ----


def _columns(changes: Changes) -> list[Column[Change]]:
    at_least = Column[Change]("at least", lambda change: _speed(change.least))
    return [
        Column("arm", lambda change: change.arm, is_text=True),
        Column("old", lambda change: _figure(changes, change.old)),
        Column("new", lambda change: _figure(changes, change.new)),
        Column("new against old", _speed_with_interval),
        *([at_least] if changes.command == "gate" else []),
        Column("verdict", lambda change: _verdict_cell(changes, change), is_text=True),
    ]


def _verdict_cell(changes: Changes, change: Change) -> str:
    reason = _why_open(changes, change)
    return f"open: {reason}" if reason else _VERDICTS.get(change.kind, change.kind)


def _junit_message(gate: Changes, change: Change) -> str:
    """Return a row of the table as one line, with the two loads if they may explain its verdict."""
    loads = f". {_load_sentence(change)}" if change.uneven_load else ""
    return f"{_in_one_line(gate, change)}{loads}"


def _in_one_line(changes: Changes, change: Change) -> str:
    """Return a row of the table as one line: the heading and the cell of each column but the arm's."""
    return ", ".join(f"{column.heading} {column.cell(change)}" for column in _columns(changes)[1:])


def _figure(changes: Changes, estimate: Estimate | None) -> str:
    """Return a step time in ms for a gate, and for two runs the speed over the reference arm's."""
    if estimate is None:
        return "–"
    return f"{estimate.mean * 1e3:.2f}" if changes.command == "gate" else format_ratio(estimate.mean)


def _speed_with_interval(change: Change) -> str:
    if change.speed_ratio is None or change.low is None or change.high is None:
        return _speed(change.speed_ratio)
    return format_ratio(change.speed_ratio, change.low, change.high)


def _speed(ratio: float | None) -> str:
    return "–" if ratio is None else format_ratio(ratio)

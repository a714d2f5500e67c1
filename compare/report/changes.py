"""Render the changes between an old and a new state, which a gate or two runs beside each other show.

If two runs are unlike, every format says so.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

import msgspec

from compare.analysis.change import Change, Changes, Difference
from compare.analysis.figures import Estimate
from compare.report.cells import format_ratio
from compare.report.document import Column, Document, Table
from compare.schema.results import Failure
from compare.system.files import json_text
from compare.text import printable

_NO_DECISION = (
    "This describes two runs and decides nothing. `ringside gate` decides, and it sees a slower computation "
    "as well."
)
_VERDICTS = {"not slower": "passed"}
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
        notes=[*([changed] if changes.changed else []), *changes.notes],
        conclusion=_conclusion(changes),
        content=lambda: msgspec.to_builtins(changes) | {"forced": bool(changes.unlike)},
    )


def benchmark(changes: Changes) -> str:
    """Return the JSON that github-action-benchmark reads for its tool ``customSmallerIsBetter``.

    It has one entry for each arm, with the new figure alone: the step time in ms for a gate, and for
    two runs the ratio to the reference arm. The action itself keeps figures of earlier runs.
    """
    factor, unit = (1e3, "ms") if changes.command == "gate" else (1.0, "×")
    entries = [
        {
            "name": printable(f"{changes.command}: {change.arm}"),
            "unit": unit,
            "value": change.new.mean * factor,
            "range": f"± {(change.new.high - change.new.low) / 2 * factor:.2f}",
            "extra": printable(". ".join([_in_one_line(changes, change), *_unlike_warning(changes)])),
        }
        for change in changes.changes
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
        for name, value in {"old": gate.old, "new": gate.new, "limit": f"{gate.limit:g}"}.items():
            ET.SubElement(properties, "property", name=name, value=printable(value))
        cases = [
            (change.arm, _JUNIT_ELEMENT.get(change.kind, ""), _in_one_line(gate, change), change.kind)
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
    limit = f"{changes.limit * 100:g} %"
    if changes.outcome == "slower":
        slower = [change.arm for change in changes.changes if change.kind == "slower"]
        return f"SLOWER, by an estimate of more than {limit}: {', '.join(slower)}."
    if changes.outcome == "too noisy":
        still_open = [change.arm for change in changes.changes if change.kind == "open"]
        names = ", ".join(still_open) or "no arm was compared"
        return f"TOO NOISY to tell whether an arm is slower by {limit}: {names}."
    return f"Passed: no arm is slower by {limit}."


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
    at_least = Column[Change]("at least", lambda change: _speed(change.at_most))
    return [
        Column("arm", lambda change: change.arm, is_text=True),
        Column("old", lambda change: _figure(changes, change.old)),
        Column("new", lambda change: _figure(changes, change.new)),
        Column("new against old", _speed_with_interval),
        *([at_least] if changes.command == "gate" else []),
        Column("verdict", lambda change: _VERDICTS.get(change.kind, change.kind), is_text=True),
    ]


def _in_one_line(changes: Changes, change: Change) -> str:
    """Return a row of the table as one line: the heading and the cell of each column but the arm's."""
    return ", ".join(f"{column.heading} {column.cell(change)}" for column in _columns(changes)[1:])


def _figure(changes: Changes, estimate: Estimate | None) -> str:
    """Return a step time in ms for a gate, and for two runs the speed over the reference arm's."""
    if estimate is None:
        return "–"
    return f"{estimate.mean * 1e3:.2f}" if changes.command == "gate" else format_ratio(1 / estimate.mean)


def _speed_with_interval(change: Change) -> str:
    """Return the new speed over the old: the inverse of the step times' ratio, which the change has."""
    if change.low is None or change.high is None:
        return _speed(change.ratio)
    return "–" if change.ratio is None else format_ratio(1 / change.ratio, 1 / change.high, 1 / change.low)


def _speed(ratio: float | None) -> str:
    return "–" if ratio is None else format_ratio(1 / ratio)

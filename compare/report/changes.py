"""Render what ``compare diff`` and ``compare gate`` found.

If ``--force`` let two unlike runs be compared, every format says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as ET

import msgspec

from compare.analysis.change import Change, Changes, Differing
from compare.report.document import Column, Document, Row, Table
from compare.schema.results import Run
from compare.system.files import json_text
from compare.text import printable

_NO_DECISION = (
    "This describes two runs and decides nothing. `compare gate` decides, and it sees a slower computation "
    "as well."
)
_JUNIT_ELEMENT = {"slower": "failure", "unresolved": "error"}
"""XML element of an arm that did not pass.

An open arm is an error, because a skipped test would be shown as green.
"""


def document_of(changes: Changes) -> Document:
    """Return the document of a gate or of ``compare diff``: one row for each arm, and the conclusion."""
    last = conclusion(changes)
    headings = _headings(changes)
    columns = [Column(name, str, is_text=name in {"arm", "verdict"}) for name in headings]
    return Document(
        title=heading(changes),
        alerts=_forced(changes),
        tables=[Table(columns=columns, rows=[Row(tuple(_row(changes, one))) for one in changes.changes])],
        lead=[f"old: {changes.old}", f"new: {changes.new}"],
        notes=list(_explained(changes)),
        conclusion=last,
        content=lambda: msgspec.to_builtins(changes) | {"forced": bool(changes.unlike)},
    )


def benchmark(changes: Changes) -> str:
    """Return the JSON that github-action-benchmark reads for its tool ``customSmallerIsBetter``.

    It has only the new figure of each arm: the step time in ms for a gate, and for ``compare diff`` the ratio
    to the reference arm. The action keeps the figures of earlier runs for its chart.
    """
    factor, unit = _unit(changes)
    entries = [
        {
            "name": printable(f"{changes.command}: {change.arm}"),
            "unit": unit or "ms",
            "value": change.new.mean * factor,
            "range": f"± {(change.new.high - change.new.low) / 2 * factor:.2f}",
            "extra": printable(". ".join([_told(changes, change), *_forced(changes)])),
        }
        for change in changes.changes
        if change.new
    ]
    return json_text(entries)


def junit(gate: Changes) -> str:
    """Return JUnit XML of a gate, with one test for each arm.

    The test of a slower arm is a failure, and that of an open arm is an error.
    """
    kinds = [_JUNIT_ELEMENT.get(change.kind, "") for change in gate.changes]
    suite = _suite(kinds)
    properties = ET.SubElement(suite, "properties")
    for name, value in {"old": gate.old, "new": gate.new, "limit": f"{gate.limit:g}"}.items():
        ET.SubElement(properties, "property", name=name, value=printable(value))
    for change, kind in zip(gate.changes, kinds, strict=True):
        case = ET.SubElement(suite, "testcase", classname="ringside.gate", name=printable(change.arm))
        told = printable(_told(gate, change))
        if kind:
            ET.SubElement(case, kind, message=told, type=change.kind)
        ET.SubElement(case, "system-out").text = told
    return _xml(suite)


def junit_of_early_end(run: Run) -> str:
    """Return JUnit XML of a gate that did not finish: a single test, whose error gives the reason."""
    suite = _suite(["error"])
    case = ET.SubElement(suite, "testcase", classname="ringside.gate", name="complete")
    why = run.failure.message if run.failure else "It ended before its last round."
    ET.SubElement(case, "error", message=printable(f"INCOMPLETE: {why}"), type="incomplete")
    return _xml(suite)


def _suite(kinds: Sequence[str]) -> ET.Element:
    """Return a JUnit test suite that has the counts of its tests, but no tests yet.

    ``kinds`` holds ``failure``, ``error`` or an empty text for each test.
    """
    return ET.Element(
        "testsuite",
        name="compare gate",
        tests=str(len(kinds)),
        failures=str(kinds.count("failure")),
        errors=str(kinds.count("error")),
        skipped="0",
    )


def _xml(suite: ET.Element) -> str:
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode")


# ---- words ----


def heading(changes: Changes) -> str:
    """Return the title of the table, which states what the figures are."""
    if changes.command == "gate":
        return "Time of a step in ms, in two environments"
    return f"Cost of synchronising in two runs: step time over that of {changes.reference} in the same round"


def conclusion(changes: Changes) -> str:
    """Return the conclusion of a gate; for ``compare diff``, a note that it decides nothing."""
    if changes.limit is None:
        return _NO_DECISION
    limit = f"{changes.limit * 100:g} %"
    slower = [change.arm for change in changes.changes if change.kind == "slower"]
    unsettled = [change.arm for change in changes.changes if change.kind == "unresolved"]
    if changes.outcome == "slower":
        return f"SLOWER, by an estimate of more than {limit}: {', '.join(slower)}."
    if changes.outcome == "too noisy":
        names = ", ".join(unsettled) or "no arm was compared"
        return f"TOO NOISY to tell whether an arm is slower by {limit}: {names}."
    return f"Passed: no arm is slower by {limit}."


def differing(one: Differing) -> str:
    """Return a fact that differs as text, with its old and its new value."""
    return f"{one.what}: {one.old} → {one.new}"


def _forced(changes: Changes) -> list[str]:
    if not changes.unlike:
        return []
    return [f"FORCED: the runs are unlike ({'; '.join(map(differing, changes.unlike))})."]


def _explained(changes: Changes) -> Iterator[str]:
    if changes.changed:
        yield f"Changed: {'; '.join(map(differing, changes.changed))}."
    yield from changes.notes


# ---- cells ----


def _unit(changes: Changes) -> tuple[float, str]:
    """Return the factor that turns a figure into what is shown, and the unit to append.

    The unit of a gate is empty, because its title says that the figures are in ms.
    """
    return (1e3, "") if changes.command == "gate" else (1.0, "×")


def _headings(changes: Changes) -> list[str]:
    at_most = ["at most"] if changes.command == "gate" else []
    return ["arm", "old", "new", "change", "interval", *at_most, "verdict"]


def _row(changes: Changes, change: Change) -> list[str]:
    factor, unit = _unit(changes)
    figures = ["–" if own is None else f"{own.mean * factor:.2f}{unit}" for own in (change.old, change.new)]
    at_most = [_percent(change.at_most)] if changes.command == "gate" else []
    verdict = {"not slower": "passed", "unresolved": "open"}.get(change.kind, change.kind)
    return [change.arm, *figures, _percent(change.ratio), _interval(change), *at_most, verdict]


def _told(changes: Changes, change: Change) -> str:
    """Return the row of a change in one line, without the name of the arm."""
    _, *cells = zip(_headings(changes), _row(changes, change), strict=True)
    return ", ".join(f"{heading} {cell}" for heading, cell in cells)


def _interval(change: Change) -> str:
    if change.low is None or change.high is None:
        return "–"
    return f"[{_signed(change.low)}, {_signed(change.high)}] %"


def _percent(ratio: float | None) -> str:
    return "–" if ratio is None else f"{_signed(ratio)} %"


def _signed(ratio: float) -> str:
    percent = (ratio - 1) * 100
    return f"{percent:+.1f}" if abs(percent) < 100 else f"{percent:+.0f}"  # noqa: PLR2004 -- digits enough

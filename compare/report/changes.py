"""Render what ``compare diff`` and ``compare gate`` found.

A comparison that was forced states it in every format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from textwrap import wrap
from xml.etree import ElementTree as ET

import msgspec
from rich.cells import cell_len, set_cell_size

from compare.analysis.change import Change, Changes, Differing
from compare.report.rows import cut_in_the_middle, markdown_rows, markdown_text
from compare.schema.files import json_text
from compare.schema.results import Run
from compare.text import printable

WIDTH = 80
_SHORTEST_NAME = 12
_GAP = "  "
_NO_DECISION = (
    "This describes two runs and decides nothing. `compare gate` decides, and it sees a slower computation "
    "as well."
)
_JUNIT_ELEMENT = {"slower": "failure", "unresolved": "error"}
"""An open arm is an error: a skipped test would be green."""


def table(changes: Changes, width: int = WIDTH) -> str:
    """Render a table that fits the width, the conclusion last."""
    headings = _headings(changes)
    rows = [headings, *_rows(changes)]
    widths = [max(cell_len(row[column]) for row in rows) for column in range(1, len(headings))]
    room = max(_SHORTEST_NAME, min(max(cell_len(row[0]) for row in rows), width - 1 - _room(widths)))
    lines = [*heading(changes), *_wrapped(_forced(changes), width), ""]
    for name, *cells in rows:
        *figures, verdict = cells
        right = [cell.rjust(own) for cell, own in zip(figures, widths, strict=False)]
        if name != headings[0] and cell_len(name) > room:
            lines.append(f" {name}")  # what tells two arms apart must not be cut
            name = ""  # noqa: PLW2901 -- it stands on the line before
        cut = set_cell_size(cut_in_the_middle(name, room), room)
        lines.append((" " + _GAP.join([cut, *right, verdict])).rstrip())
    lines += ["", *_wrapped([*_explained(changes), conclusion(changes)], width)]
    return "\n".join(map(printable, lines))


def markdown(changes: Changes) -> str:
    """Render a summary for a merge request or a job."""
    headings = _headings(changes)
    aligned = [":--", *["--:"] * (len(headings) - 2), ":--"]
    last = conclusion(changes)
    lines = [] if changes.outcome is None else [f"**{last}**", ""]
    lines += [*(f"{line}  " for line in heading(changes)), ""]
    lines += [f"**{line}**" for line in _forced(changes)] + ([""] if changes.unlike else [])
    below = [*_explained(changes), *[last] * (changes.outcome is None)]
    return markdown_text(
        [*lines, *markdown_rows([headings, aligned, *_rows(changes)]), "", *(f"- {line}" for line in below)]
    )


def as_json(changes: Changes) -> str:
    """Render everything for programs; ``forced`` tells of ``--force``."""
    fields = msgspec.to_builtins(changes) | {"forced": bool(changes.unlike)}
    return json_text(fields)


def benchmark(changes: Changes) -> str:
    """Render the JSON of github-action-benchmark, where smaller is better.

    It has the new state of each arm. Its chart keeps the old ones.
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
    """Render JUnit XML of a gate, one test for each arm.

    An arm that is slower is a failure, and one that is open an error.
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
    """Render JUnit XML of an unfinished gate: one error."""
    suite = _suite(["error"])
    case = ET.SubElement(suite, "testcase", classname="ringside.gate", name="complete")
    why = run.failure.message if run.failure else "It ended before its last round."
    ET.SubElement(case, "error", message=printable(f"INCOMPLETE: {why}"), type="incomplete")
    return _xml(suite)


def _suite(kinds: Sequence[str]) -> ET.Element:
    """Start a suite of tests; a kind is an element, or empty."""
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


CHANGE_RENDERERS: dict[str, Callable[[Changes], str]] = {
    "table": table,
    "markdown": markdown,
    "json": as_json,
    "github-benchmark": benchmark,
}
"""The formats of ``--format``."""


# ---- words ----


def heading(changes: Changes) -> list[str]:
    """Say what is compared, and in which unit."""
    unit = "Time of a step in ms."
    if changes.command == "diff":
        unit = f"Cost of synchronising: step time over that of {changes.reference} in the same round."
    return [unit, f"old: {changes.old}", f"new: {changes.new}"]


def conclusion(changes: Changes) -> str:
    """Conclude from a gate, or name what does from two runs."""
    if changes.limit is None:
        return _NO_DECISION
    limit = f"{changes.limit * 100:g} %"
    slower = [change.arm for change in changes.changes if change.kind == "slower"]
    unsettled = [change.arm for change in changes.changes if change.kind == "unresolved"]
    if changes.outcome == "slower":
        return f"SLOWER by more than {limit}: {', '.join(slower)}."
    if changes.outcome == "too noisy":
        names = ", ".join(unsettled) or "no arm was compared"
        return f"TOO NOISY to tell whether an arm is slower by {limit}: {names}."
    return f"Passed: no arm is slower by {limit}."


def differing(one: Differing) -> str:
    """Write one fact with both of its values."""
    return f"{one.what}: {one.old} → {one.new}"


def _forced(changes: Changes) -> list[str]:
    if not changes.unlike:
        return []
    return [f"FORCED: the runs are unlike ({'; '.join(map(differing, changes.unlike))})."]


def _explained(changes: Changes) -> Iterator[str]:
    if changes.changed:
        yield f"Changed: {'; '.join(map(differing, changes.changed))}."
    yield from changes.notes


def _wrapped(lines: Iterable[str], width: int) -> list[str]:
    return [part for line in lines for part in wrap(line, width, break_long_words=False)]


# ---- cells ----


def _unit(changes: Changes) -> tuple[float, str]:
    """Return the factor and the unit of figures."""
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


def _rows(changes: Changes) -> list[list[str]]:
    return [_row(changes, change) for change in changes.changes]


def _told(changes: Changes, change: Change) -> str:
    """Write all of a row but its arm in one line."""
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


def _room(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * len(widths)

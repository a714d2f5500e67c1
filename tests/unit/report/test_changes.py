"""Test the formats of a gate and of two runs side by side."""

import json
from xml.etree import ElementTree as ET

import msgspec
import pytest

from compare.analysis.change import Changes, Difference
from compare.report.changes import benchmark, document_of, junit
from compare.report.formats import terminal, write
from tests.unit.changes import a_change, a_gate


def table(changes):
    return terminal.plain_text(document_of(changes), 80)


def markdown(changes):
    return write(document_of(changes), "markdown")


def as_json(changes):
    return write(document_of(changes), "json")


HOSTILE = "ddp:env.X=<script>\x1b[31m|&\x00"


def a_diff(*changes, **given):
    fields = {"command": "diff", "old": "runs/a", "new": "runs/b", "reference": "none"}
    return Changes(**fields | {"changes": list(changes)} | given)


def test_table_fits_80_columns_and_ends_with_the_conclusion():
    long = "horovod:controller=mpi:fusion_mb=128:cycle_ms=1:compression=fp16"
    shown = table(a_gate(a_change("ddp", "slower", 1.1), a_change(long, "open", 1.5)))
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.splitlines()[-1] == "SLOWER, by an estimate of more than 5 %: ddp."
    assert long in shown


def test_formats_state_that_two_runs_are_unlike():
    forced = a_diff(a_change("ddp", "slower"), unlike=[Difference("model", "mlp", "wide")])
    for render in (table, markdown, as_json, benchmark):
        assert "unlike" in render(forced).lower()
    assert "UNLIKE, so their difference may mean nothing: model: mlp → wide" in table(forced)
    assert json.loads(as_json(forced))["forced"] is True
    assert not any("UNLIKE" in render(a_diff(a_change("ddp", "slower"))) for render in (table, markdown))


def test_table_of_a_gate_shows_the_bound_by_which_an_arm_passes():
    shown = table(a_gate(a_change("ddp"), msgspec.structs.replace(a_change("manual"), at_most=None)))
    assert "new against old  at least  verdict" in shown
    assert "0.99× (0.97–1.01)     0.98×  passed" in shown
    assert "at least" not in table(a_diff(a_change("ddp", "open")))


@pytest.mark.parametrize("render", [table, markdown])
def test_diff_concludes_nothing_and_names_the_command_that_does(render):
    shown = render(a_diff(a_change("ddp", "slower", 1.2), a_change("manual", "open")))
    assert " slower" in shown
    assert " open" in shown
    assert not any(word in shown for word in ("SLOWER", "Passed", "NOISY"))
    last = shown.replace("\n", " ").rpartition("This describes two runs and decides nothing.")[2]
    assert last.rstrip("*") == " `ringside gate` decides, and it sees a slower computation as well."


def test_junit_has_a_failure_for_slower_and_an_error_for_open():
    suite = ET.fromstring(junit(a_gate(a_change("a", "slower"), a_change("b", "open"), a_change("c"))))
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["3", "1", "1"]
    found = {case.get("name"): [part.tag for part in case] for case in suite.iter("testcase")}
    assert found == {"a": ["failure", "system-out"], "b": ["error", "system-out"], "c": ["system-out"]}


def test_hostile_names_are_harmless_in_every_format():
    hostile = a_gate(a_change(HOSTILE, "slower"), old=HOSTILE, notes=[HOSTILE])
    for text in (table(hostile), markdown(hostile), junit(hostile)):
        assert "\x1b" not in text
        assert "\x00" not in text
    assert "<script>" not in markdown(hostile)
    ET.fromstring(junit(hostile))


@pytest.mark.parametrize(
    ("kind", "stated"), [("slower", "SLOWER"), ("open", "TOO NOISY"), ("not slower", "Passed")]
)
def test_conclusion_tells_slower_from_open(kind, stated):
    assert table(a_gate(a_change("ddp", kind))).splitlines()[-1].startswith(stated)

"""Test the formats of a gate and of two runs side by side."""

import json
from xml.etree import ElementTree as ET

import msgspec
import pytest

from compare.analysis.change import Changes, Difference
from compare.cli.gate import require_passed
from compare.errors import TooNoisyError
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
    for render in (table, markdown, as_json):
        assert "unlike" in render(forced).lower()
    assert "UNLIKE, so their difference may mean nothing: model: mlp → wide" in table(forced)
    assert json.loads(as_json(forced))["forced"] is True
    assert not any("UNLIKE" in render(a_diff(a_change("ddp", "slower"))) for render in (table, markdown))


def test_table_of_a_gate_shows_the_bound_by_which_an_arm_passes():
    shown = table(a_gate(a_change("ddp"), msgspec.structs.replace(a_change("manual"), least=None)))
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


def test_open_gate_names_the_rounds_and_the_budget_that_would_decide_it():
    open_gate = a_gate(a_change("ddp", "open"), rounds=5, needed_rounds=9, needed_seconds=412.0)
    assert document_of(open_gate).conclusion == (
        "TOO NOISY to tell after 5 rounds whether an arm is slower by 5 %: ddp. "
        "About 9 rounds would decide it, for which --budget 460 has time, or --repeats 9."
    )
    assert "is not known" in document_of(a_gate(a_change("ddp", "open"))).conclusion


def an_open_change(arm="ddp", **given):
    return msgspec.structs.replace(a_change(arm, "open", 2.2), **given)


def test_gate_of_few_rounds_says_so_and_names_the_least():
    few = an_open_change(rounds=(1, 1), low=None, high=None)
    gate = a_gate(few, rounds=1, needed_rounds=5, needed_seconds=98.0)
    assert document_of(gate).conclusion == (
        "OPEN after 1 round, because nothing is judged before round 5: ddp. "
        "5 rounds are the least, for which --budget 110 has time, or --repeats 5."
    )
    assert "open: few rounds" in table(gate)


@pytest.mark.parametrize("render", [table, markdown, junit])
def test_gate_withheld_because_of_uneven_load_names_the_two_loads(render):
    shown = " ".join(render(a_gate(an_open_change(uneven_load=(0.9, 0.05)), rounds=5)).split())
    assert "open: uneven load" in shown
    assert "0.90 cores beside the new side of ddp and 0.05 beside the old one" in shown
    assert "NOISY" not in shown


def test_gate_of_several_reasons_names_each_with_its_arms():
    arms = (an_open_change("a", uneven_load=(0.9, 0.0)), an_open_change("b"), an_open_change("c"))
    stated = document_of(a_gate(*arms, rounds=8)).conclusion
    assert "OPEN after 8 rounds, because the load was uneven: a." in stated
    assert "TOO NOISY to tell after 8 rounds whether an arm is slower by 5 %: b, c." in stated
    assert "outnumber the cores: a, b, c." in document_of(a_gate(*arms, beyond_cores=True)).conclusion
    assert document_of(a_gate(outcome="too noisy")).conclusion == "OPEN: not every arm was compared."


def test_load_beside_a_verdict_that_stands_is_a_note():
    loaded = msgspec.structs.replace(a_change("ddp", "slower", 1.5), uneven_load=(0.2, 0.0))
    document = document_of(a_gate(loaded))
    assert document.conclusion.startswith("SLOWER")
    assert any("Other programs used 0.20 cores" in note for note in document.notes)


@pytest.mark.parametrize("render", [table, markdown, junit])
def test_gate_says_how_to_read_its_ratios(render):
    shown = " ".join(render(a_gate(a_change("ddp"))).split())
    assert "above 1 the new side is faster" in shown
    assert "needs 0.952× in `at least`" in shown
    assert "the new side is faster" not in table(a_diff(a_change("ddp")))


@pytest.mark.parametrize(("seconds", "names"), [(100.0, True), (None, False)])
def test_error_of_an_open_gate_names_a_budget_if_the_conclusion_does(seconds, names):
    gate = a_gate(a_change("ddp", "open"), needed_rounds=9 if seconds else None, needed_seconds=seconds)
    with pytest.raises(TooNoisyError) as refused:
        require_passed(gate)
    assert ("--budget" in refused.value.remedy) is names
    assert ("--budget" in document_of(gate).conclusion) is names


def test_junit_has_a_failure_for_slower_and_an_error_for_open():
    suite = ET.fromstring(junit(a_gate(a_change("a", "slower"), a_change("b", "open"), a_change("c"))))
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["3", "1", "1"]
    found = {case.get("name"): [part.tag for part in case] for case in suite.iter("testcase")}
    assert found == {"a": ["failure", "system-out"], "b": ["error", "system-out"], "c": ["system-out"]}


def test_benchmark_of_a_gate_has_the_new_step_time_of_each_arm():
    (entry,) = json.loads(benchmark(a_gate(a_change("ddp", "slower", 1.1))))
    assert (entry["name"], entry["unit"]) == ("gate: ddp", "ms")
    assert entry["value"] == pytest.approx(4321 * 1.1)
    assert entry["range"].startswith("± ")
    assert "verdict slower" in entry["extra"]


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
    assert document_of(a_gate(a_change("ddp", kind))).conclusion.startswith(stated)

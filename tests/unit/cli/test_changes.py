"""Test what a gate and two runs side by side print, their files and their exit codes."""

import json

import pytest
from typer.testing import CliRunner

from compare.cli.gate import read_percent, require_passed
from compare.cli.main import EXIT_CODES, app
from compare.cli.output import show_changes
from compare.errors import SlowerError, TooNoisyError, UsageError
from compare.system.files import write_json
from tests.unit.changes import a_change, a_gate
from tests.unit.factories import a_run

QUIET = [5.0, 5.01, 5.02, 5.0, 5.01]


def saved(folder, times, **changes):
    folder.mkdir()
    write_json(folder / "results.json", a_run({"none": [4.0] * len(times), "ddp": times}, **changes))
    return folder


@pytest.fixture
def old(tmp_path):
    return saved(tmp_path / "old", QUIET)


def beside(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.mark.parametrize(
    ("times", "kind"), [(QUIET, "open"), ([time * 1.1 for time in QUIET], "slower"), (QUIET[:4], "open")]
)
def test_two_runs_are_described_and_fail_nothing(old, tmp_path, times, kind):
    new, summary = saved(tmp_path / "new", times), tmp_path / "diff.md"
    done = beside(old, new, "--export", summary)
    assert done.exit_code == 0
    assert f" {kind}\n" in done.output
    assert "| ddp |" in summary.read_text()


def test_two_unlike_runs_are_shown_with_a_warning(old, tmp_path):
    new = saved(tmp_path / "new", QUIET, cores=8)
    assert "UNLIKE" in beside(old, new).output
    assert json.loads(beside(old, new, "--format", "json").output)["forced"] is True


def test_json_of_two_runs_has_speeds(old, tmp_path):
    new = saved(tmp_path / "new", [time * 1.1 for time in QUIET])
    (change,) = json.loads(beside(old, new, "--format", "json").output)["changes"]
    assert change["speed_ratio"] == pytest.approx(1 / 1.1)
    assert change["low"] < change["speed_ratio"] < change["high"] < 1
    assert change["old"]["mean"] == pytest.approx(4 / 5, rel=0.01)


# ---- the gate ----


def test_gate_has_an_exit_code_for_slower_and_one_for_open():
    require_passed(a_gate(a_change("ddp", "not slower")))
    require_passed(a_gate(a_change("ddp", "faster")))
    for kind, error in (("slower", SlowerError), ("open", TooNoisyError)):
        assert error.exit_code in EXIT_CODES
        with pytest.raises(error, match=f"exit code {error.exit_code}"):
            require_passed(a_gate(a_change("ddp", kind)))


def test_conclusion_of_a_gate_that_fails_is_printed_once(capsys):
    show_changes(a_gate(a_change("ddp", "slower")), "table")
    with pytest.raises(SlowerError) as failed:
        require_passed(a_gate(a_change("ddp", "slower")))
    printed = f"{capsys.readouterr().out}{failed.value}"
    assert printed.count("SLOWER, by an estimate of more than 5 %: ddp.") == 1


@pytest.mark.parametrize(("written", "fraction"), [("5%", 0.05), ("7.5", 0.075)])
def test_limit_is_read_with_and_without_its_sign(written, fraction):
    assert read_percent(written) == pytest.approx(fraction)


@pytest.mark.parametrize("limit", ["0", "-1%", "five", "nan", "1e9"])
def test_limit_that_is_no_percentage_is_refused(limit):
    with pytest.raises(UsageError):
        read_percent(limit)

"""Test the exit codes and the files of ``compare diff``."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from compare.cli.main import EXIT_CODES, app
from compare.errors import ConditionsError, SlowerError, TooNoisyError, UsageError
from compare.schema.files import write_json
from tests.unit.factories import a_run

QUIET = [5.0, 5.01, 5.02, 5.0, 5.01]


def saved(folder, times, **changes):
    folder.mkdir()
    write_json(folder / "results.json", a_run({"none": [4.0] * len(times), "ddp": times}, **changes))
    return folder


@pytest.fixture
def old(tmp_path):
    return saved(tmp_path / "old", QUIET)


def diff(*arguments):
    return CliRunner().invoke(app, ["diff", *map(str, arguments)])


@pytest.mark.parametrize(
    ("times", "error"),
    [
        (QUIET, None),
        ([time * 1.1 for time in QUIET], SlowerError),
        ([4.0, 6.0, 5.0, 7.0, 4.5], TooNoisyError),
        (QUIET[:4], TooNoisyError),
    ],
)
def test_diff_has_an_exit_code_for_slower_and_one_for_open(old, tmp_path, times, error):
    new = saved(tmp_path / "new", times)
    junit, summary = tmp_path / "diff.xml", tmp_path / "diff.md"
    files = ("--export-junit", junit, "--export-markdown", summary)
    done = diff(old, new, "--fail-if-slower", "5%", *files)
    assert type(done.exception) is (error or type(None))
    assert error is None or error.exit_code in EXIT_CODES
    suite = ET.parse(junit).getroot()
    assert (suite.get("failures"), suite.get("errors")) == (
        str(int(error is SlowerError)),
        str(int(error is TooNoisyError)),
    )
    assert "| ddp |" in summary.read_text()
    assert diff(old, new).exit_code == 0  # nothing fails without a limit


def test_conclusion_of_a_diff_that_fails_is_printed_once(old, tmp_path):
    new = saved(tmp_path / "new", [time * 1.1 for time in QUIET])
    done = diff(old, new, "--fail-if-slower", "5%")
    assert f"{done.output}{done.exception}".count("SLOWER by more than 5 %: ddp.") == 1
    assert str(done.exception).startswith("The diff did not pass (exit code 14).\n")


def test_diff_of_unlike_runs_needs_force_and_states_it(old, tmp_path):
    new = saved(tmp_path / "new", QUIET, cores=8)
    assert isinstance(diff(old, new).exception, ConditionsError)
    shown = diff(old, new, "--force", "--format", "json")
    assert json.loads(shown.output)["forced"] is True


def test_diff_as_a_benchmark_has_the_new_state_of_each_arm(old, tmp_path):
    new = saved(tmp_path / "new", [time * 1.1 for time in QUIET])
    (entry,) = json.loads(diff(old, new, "--format", "github-benchmark").output)
    assert (entry["name"], entry["unit"]) == ("diff: ddp", "×")
    assert entry["value"] == pytest.approx(1.1 * 5 / 4, rel=0.01)
    assert entry["range"].startswith("± 0.0")
    assert "slower" in entry["extra"]


@pytest.mark.parametrize("limit", ["0", "-1%", "five", "nan", "1e9"])
def test_limit_that_is_no_percentage_is_refused(old, limit):
    assert isinstance(diff(old, old, "--fail-if-slower", limit).exception, UsageError)


def test_junit_without_a_limit_is_refused(old, tmp_path):
    refused = diff(old, old, "--export-junit", tmp_path / "diff.xml").exception
    assert isinstance(refused, UsageError)
    assert not (tmp_path / "diff.xml").exists()

"""``ringside predict``: what it prints, and what it refuses."""

import pytest
from typer.testing import CliRunner

from compare.cli.main import app
from compare.errors import OutputError, UsageError
from compare.schema.store import RESULTS_FILE
from compare.system.files import write_json
from tests.unit.predictions import a_measured_run
from tests.unit.runs import RUNS


@pytest.fixture
def saved(tmp_path):
    """Save a run with two hosts, and one with a single rank."""
    for name, ranks in (("two", 2), ("one", 1)):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / RESULTS_FILE, a_measured_run(ranks=ranks))
    return tmp_path


def call(*arguments):
    return CliRunner().invoke(app, ["predict", *map(str, arguments)])


def test_predict_prints_every_count_with_its_error_or_another_run(saved):
    done = call(saved / "two", "--hosts", "2,4", "--link", "1gbit,2ms", "--format", "csv")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert len(lines) == 3
    assert "error" in lines[0]
    against = call(saved / "two", "--against", saved / "two", "--format", "markdown")
    assert against.exit_code == 0, against.output
    assert "| manual | 2 |" in against.output


def test_folder_of_runs_names_the_runs_in_it(tmp_path):
    for count in (2, 16, 4):
        (tmp_path / f"np{count}").mkdir()
        write_json(tmp_path / f"np{count}" / RESULTS_FILE, a_measured_run(ranks=2))
    error = call(tmp_path).exception
    assert isinstance(error, OutputError)
    assert error.what == f"{tmp_path} is not a run, but holds 3 runs."
    assert error.found == "The runs in it: np2, np4, np16."
    assert error.remedy == f"Name one of them, as {tmp_path / 'np16'}."


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (["one"], OutputError, "Nothing can be predicted"),
        (["two", "--hosts", "1"], UsageError, "--hosts cannot be"),
        (["two", "--hosts", "many"], UsageError, "--hosts cannot be"),
        (["two", "--link", "fast"], UsageError, "--link cannot be"),
        (["two", "--bucket-cap", "0"], UsageError, "--bucket-cap cannot be"),
    ],
)
def test_predict_with_a_mistake_is_refused(saved, arguments, error, says):
    done = call(saved / arguments[0], *arguments[1:])
    assert isinstance(done.exception, error)
    assert says in done.exception.what
    assert done.exception.remedy


def test_predict_tells_the_memory_of_a_larger_model_and_no_time(saved):
    (saved / "shards").mkdir()
    write_json(saved / "shards" / RESULTS_FILE, RUNS["shards"])
    done = call(saved / "shards", "--model-scale", 4, "--hosts", "2,4", "--format", "csv")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert len(lines) == 1 + 5 * 2
    assert "second" not in lines[0]
    ranks = lines[0].split(",").index("ranks")
    # The run had two ranks on its host.
    assert {line.split(",")[ranks] for line in lines[1:]} == {"4", "8"}


@pytest.mark.parametrize("flag", [("--link", "1gbit"), ("--bucket-cap", "25")])
def test_predict_refuses_flags_of_time_for_memory(saved, flag):
    error = call(saved / "two", "--model-scale", 4, *flag).exception
    assert isinstance(error, UsageError)
    assert flag[0] in error.found


def test_predict_says_that_older_results_tell_no_memory(saved):
    assert isinstance(call(saved / "two", "--model-scale", 4).exception, OutputError)

"""``ringside predict``: what it prints, and what it refuses."""

import pytest
from typer.testing import CliRunner

from compare.cli.main import app
from compare.errors import OutputError, UsageError
from compare.schema.store import RESULTS_FILE
from compare.system.files import write_json
from tests.unit.predictions import a_measured_run


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

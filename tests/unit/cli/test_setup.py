"""Test what ``ringside setup`` shows and writes."""

import msgspec
import pytest
from typer.testing import CliRunner

from compare.cli.main import app
from compare.doctor import availability
from compare.errors import OutputError, UsageError
from tests.unit.factories import a_survey


def call(*arguments):
    return CliRunner().invoke(app, ["setup", *map(str, arguments)])


def test_setup_alone_lists_what_is_missing_with_its_command(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(availability, "survey", lambda **_: a_survey(missing=["mpi", "horovod"]))
    shown = call().output
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert "Parts that are not ready here: " in shown
    assert "pip install" in lines["mpi"]
    assert lines["MNIST"].endswith("ringside setup data")


def test_setup_prints_one_cause_once(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")  # no cell is broken
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    survey, cause = a_survey(), "torch does not load: no answer"
    broken = {
        name: msgspec.structs.replace(one, problem=cause, remedy="python -c 'import torch'")
        for name, one in survey.backends.items()
    }
    monkeypatch.setattr(availability, "survey", lambda **_: msgspec.structs.replace(survey, backends=broken))
    shown = " ".join(call().output.split())
    assert shown.count(cause) == shown.count("import torch") == 1
    assert {"ddp", "mpi", "horovod"} <= set(shown.split())
    assert "missing" not in shown


def test_setup_writes_a_workload_once_and_says_how_to_run_it(tmp_path):
    file = tmp_path / "my train.py"
    assert f"ringside run --workload '{file}:make'" in call("workload", file).output
    text = file.read_text()
    assert "def make() -> Workload:" in text
    assert isinstance(call("workload", file).exception, OutputError)
    assert file.read_text() == text


@pytest.mark.parametrize("name", ["train", "train.txt"])
def test_setup_of_a_workload_needs_a_python_file(tmp_path, name):
    assert isinstance(call("workload", tmp_path / name).exception, UsageError)

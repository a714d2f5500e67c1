"""Test ``import ringside`` as a user would write it."""

import csv
import subprocess
import sys

import pandas as pd
import pytest

import ringside
from compare.schema.store import RESULTS_FILE
from compare.system.files import write_json
from tests.unit.factories import a_run

FASTER = [1.21, 1.18, 1.24, 1.20, 1.19]


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A run of five rounds in ``runs``, below the working folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "2026-11-29T10-00-00-mlp"
    folder.mkdir(parents=True)
    milliseconds = {"none": [4.0] * 5, "ddp": [8.0, 8.1, 7.9, 8.0, 8.05], "mpi": [5.0, 5.1, 4.9, 5.0, 5.05]}
    write_json(folder / RESULTS_FILE, a_run(milliseconds))
    return folder


def test_last_run_is_loaded_as_a_data_frame(stored):
    table = ringside.load().table()
    assert isinstance(table, pd.DataFrame)
    assert table.set_index("arm").loc["ddp", "step_seconds"] == pytest.approx(8.01e-3, rel=1e-3)


def test_without_pandas_a_table_is_the_records_of_a_csv(stored, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    run = ringside.load(stored)
    run.save(tmp_path / "run.csv")
    with (tmp_path / "run.csv").open() as file:
        written = list(csv.DictReader(file))
    records = run.table()
    assert [record["arm"] for record in records] == ["none", "ddp", "mpi"]
    assert [list(record) for record in records] == [list(record) for record in written]


def test_analysis_has_the_verdicts_of_the_report(stored):
    run = ringside.load("last")
    mpi = next(arm for arm in run.analysis.summary.arms if arm.arm == "mpi")
    assert mpi.verdict.kind == "faster"
    assert "mpi, 1.60×" in str(run).splitlines()[-1]


def test_page_of_a_notebook_is_framed_and_escaped(stored):
    page = ringside.load()._repr_html_()
    assert page.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert page.count('"') == page.count('="') * 2, "no quote ends the attribute early"


def test_missing_run_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ringside.RingsideError) as error:
        ringside.load()
    assert "Run `ringside run` first" in error.value.remedy


def test_result_without_arms_to_rank_has_no_analysis(stored):
    with pytest.raises(ringside.RingsideError, match="has no analysis"):
        ringside.result.Result(object(), stored).analysis  # noqa: B018 -- it is computed when it is read


@pytest.mark.parametrize(
    ("ratios", "kinds"),
    [
        ({"mine": FASTER}, {"mine": "faster"}),
        ({"mine": [1 / ratio for ratio in FASTER]}, {"mine": "slower"}),
        ({"mine": FASTER, "same": [1.001, 0.999, 1.0, 1.002, 0.998]}, {"mine": "faster", "same": "same"}),
        ({"mine": FASTER[:4]}, {"mine": "open"}),
        ({"mine": [1.5, 0.7, 1.2, 0.8, 1.1]}, {"mine": "open"}),
    ],
)
def test_ratios_of_ones_own_are_judged_as_a_run_is(ratios, kinds):
    assert {name: verdict.kind for name, verdict in ringside.judge(ratios).items()} == kinds


@pytest.mark.parametrize(
    ("ratios", "found"),
    [
        ({"a": []}, "There are 0 of 'a'."),
        ({"a": [1.0], "b": [1.0, 2.0]}, "There are 1 of 'a', 2 of 'b'."),
        ({"a": [1.0, 0.0]}, "0.0 is among them."),
        ({"a": [1.0, float("nan")]}, "nan is among them."),
        ({"a": ["1.2"]}, "'1.2' is among them."),
        ({"a": 1.2}, "They are 1.2."),
    ],
)
def test_ratios_that_cannot_be_judged_are_refused(ratios, found):
    with pytest.raises(ringside.RingsideError) as error:
        ringside.judge(ratios)
    assert error.value.found == found


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"workloda": "train.py:make"}, "ringside.compare has no argument 'workloda'."),
        ({"num_proc": "2"}, "ringside.compare: num_proc cannot be '2'."),
        ({"quiet": 1}, "ringside.compare: quiet cannot be 1."),
        ({"budget": "10m"}, "ringside.compare: budget cannot be '10m'."),
        ({"repeats": 5.0}, "ringside.compare: repeats cannot be 5.0."),
        ({"env": 5}, "ringside.compare: env cannot be 5."),
        ({"backend": "mpi"}, "ringside.compare has no argument 'backend'."),
        ({"steps": "many"}, "--steps cannot be 'many'."),
        ({"repeats": 2, "data": "digits", "arms": "ddq"}, "ddq"),
    ],
)
def test_wrong_argument_is_refused_before_anything_runs(arguments, what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ringside.RingsideError) as error:
        ringside.compare(**{"arms": "ddp", **arguments})
    assert what in error.value.what
    assert not list(tmp_path.iterdir())


def test_arguments_become_the_command_line_that_does_the_same():
    from ringside.flags import as_words

    words = as_words(
        {"backend": ["ddp", "mpi"], "quiet": True, "env": ["TOKEN=secret"], "budget": 180, "control": False}
    )
    assert words[:7] == ["ringside", "run", "--backend", "ddp", "--backend", "mpi", "--quiet"]
    assert words[7] == "--env"
    assert words[8].startswith("TOKEN=")
    assert "secret" not in words[8]
    assert words[9:] == ["--budget", "180", "--no-control"]


def test_import_loads_neither_torch_nor_numpy():
    code = "import ringside, sys; print(sorted({'torch', 'numpy', 'scipy', 'typer'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

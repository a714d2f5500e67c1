"""Run the cells of the example notebook, as a notebook would."""

import ast
import json

import ringside
from tests.comparing import ROOT


def test_notebook_shows_a_table_a_page_and_a_verdict(tmp_path, monkeypatch, capsys):
    text = (ROOT / "examples" / "notebook.ipynb").read_text()
    assert "repeats=2" in text
    cells = json.loads(text.replace("repeats=2", "repeats=1"))["cells"]  # one round shows as much
    monkeypatch.chdir(tmp_path)
    names = {}
    values = [value_of("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    _, table, run, share, (kind, low, high) = values
    assert "equal bit for bit" in capsys.readouterr().out
    assert sorted(table["arm"]) == ["ddp", "mpi", "none"]
    assert "Where a step" in run._repr_html_()
    assert 0 < share.mean < 1
    assert kind == "faster"
    assert 1 < low < high
    assert ringside.load("last").stored == run.stored


def value_of(code, names):
    """Run a cell, and return the value of its last line."""
    *lines, last = ast.parse(code).body
    exec(compile(ast.Module(lines, []), "cell", "exec"), names)  # noqa: S102 -- the project's own notebook
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307 -- same
    exec(compile(ast.Module([last], []), "cell", "exec"), names)  # noqa: S102 -- same
    return None

"""Settings of a file: found, read and refused."""

from pathlib import Path

import pytest

from compare.cli.settings_file import MAX_FILE_BYTES, Flag, find_settings, read_settings, settings_for
from compare.errors import UsageError

FLAGS = {
    "run": {
        "backend": Flag("backend", "text", many=True),
        "steps": Flag("steps", "whole number"),
        "lr": Flag("lr", "number"),
        "budget": Flag("budget", "time"),
        "control": Flag("control", "switch"),
        "hostfile": Flag("hostfile", "path"),
        "output": Flag("output", "path"),
    },
    "gate": {"against": Flag("against", "program"), "steps": Flag("steps", "whole number")},
    "data fetch": {"data_dir": Flag("data_dir", "path")},
}


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(text, command="run", path="run.toml"):
    Path(path).write_text(text)
    return settings_for(read_settings(Path(path)), command, FLAGS)


def test_settings_hold_for_every_command_and_tables_for_one():
    text = "steps = 60\n[run]\nsteps = 90\n[data.fetch]\ndata-dir = '/data'\n"
    assert settings(text) == {"steps": 90}
    assert settings(text, "gate") == {"steps": 60}
    assert settings(text, "data fetch") == {"data_dir": "/data"}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("backend = 'ddp,mpi'", {"backend": ["ddp,mpi"]}),
        ("backend = ['ddp', 'mpi']", {"backend": ["ddp", "mpi"]}),
        ("budget = 90", {"budget": 90}),
        ("budget = '5m'", {"budget": "5m"}),
        ("lr = 1", {"lr": 1}),
        ("control = false", {"control": False}),
        ("output = '-'", {"output": "-"}),
    ],
)
def test_settings_are_read_as_their_flags_take_them(written, read):
    assert settings(written) == read


def test_paths_of_settings_are_relative_to_their_file(folder):
    Path("conf").mkdir()
    assert settings("hostfile = 'hosts'", path="conf/run.toml") == {"hostfile": "conf/hosts"}
    assert settings("hostfile = '/etc/hosts'", path="conf/run.toml") == {"hostfile": "/etc/hosts"}
    for written, read in (("../before/bin/python", "conf/../before/bin/python"), ("python3", "python3")):
        assert settings(f"[gate]\nagainst = '{written}'", "gate", "conf/run.toml") == {"against": read}


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("bugdet = 3", ["'bugdet'", "Did you mean budget?"]),
        ("[runn]\nsteps = 3", ["'runn'", "Did you mean run?"]),
        ("[data.fetsh]\nx = 1", ["'fetsh' in [data]", "Did you mean fetch?"]),
        ("[run]\nagainst = 'python'", ["'against' in [run]", "Use one of: backend, budget"]),
        ("[gate]\nstep = 3", ["'step' in [gate]", "Did you mean steps?"]),
        ("steps = '60'", ["steps cannot be '60'", "a whole number, without quotes"]),
        ("steps = 3.5", ["steps cannot be 3.5"]),
        ("steps = true", ["steps cannot be true"]),
        ("steps = [3]", ["steps cannot be [3]"]),
        ("control = 1", ["control cannot be 1", "true or false"]),
        ("lr = '0.1'", ["lr cannot be '0.1'"]),
        ("backend = ['ddp', 1979-05-27]", ["backend cannot be", "or a list of them"]),
        ("[gate]\nsteps = 'x'", ["[gate] steps cannot be 'x'"]),
        ("steps = ?", ["is not TOML", "line 1"]),
        ("a = " + "[" * 5000, ["is not TOML"]),
    ],
)
def test_wrong_settings_are_refused_with_file_and_key(written, says):
    with pytest.raises(UsageError) as refused:
        settings(written)
    assert [text for text in ["run.toml", *says] if text not in str(refused.value)] == []


def test_files_that_are_no_settings_are_refused():
    Path("long.toml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    Path("bytes.toml").write_bytes(b"\xff")
    for name in ("long.toml", "bytes.toml", "missing.toml", ".", "/dev/zero", "x" * 300):
        with pytest.raises(UsageError):
            read_settings(Path(name))


def test_settings_are_found_in_the_nearest_pyproject(folder, monkeypatch):
    inner = folder / "a" / "b"
    inner.mkdir(parents=True)
    (folder / "pyproject.toml").write_text("[tool.ringside]\nsteps = 60\n")
    (folder / "a" / "pyproject.toml").write_text("[project]\nname = 'of-another'\n")
    (inner / "pyproject.toml").mkdir()
    monkeypatch.chdir(inner)
    found = find_settings()
    assert (found.path, found.table) == (Path("../../pyproject.toml"), {"steps": 60})
    assert read_settings(Path("../../pyproject.toml")) == found


def test_pyproject_that_is_not_toml_is_refused_if_it_may_have_settings(folder):
    Path("pyproject.toml").write_text("[tool.other\n")
    assert find_settings() is None
    Path("pyproject.toml").write_text("[tool.ringside\n")
    with pytest.raises(UsageError, match="is not TOML"):
        find_settings()

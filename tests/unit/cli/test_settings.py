"""Flags from a file: found, read, refused; the command line wins."""

import re
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from compare.cli import main as cli
from compare.cli import run as running
from compare.cli.requests import read_request
from compare.cli.settings import _every_command, find_settings, read_settings, settings_for
from compare.errors import UsageError

RUN = ["run", "--dry-run"]


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text, name="run.toml"):
    Path(name).write_text(text)


def use(text):
    """Let commands in this folder take these settings."""
    lines = ["[tool.ringside]", *text.splitlines()]
    write(
        "\n".join(re.sub(r"^\[(?!tool)(\w+)\]$", r"[tool.ringside.\1]", line) for line in lines),
        "pyproject.toml",
    )


def settings(text, command="run", path="run.toml"):
    write(text, path)
    return settings_for(
        Path(path), read_settings(Path(path)), command, dict(_every_command(get_command(cli.app)))
    )


def test_settings_hold_for_every_command_and_tables_for_one():
    text = "steps = 60\n[run]\nsteps = 90\n['setup data']\ndata = '/data'\n"
    assert settings(text) == {"steps": "90"}
    assert settings(text, "gate") == {"steps": "60"}
    assert settings(text, "setup data") == {"data": "/data"}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("backend = 'ddp,mpi'", {"backend": ["ddp,mpi"]}),
        ("backend = ['ddp', 'mpi']", {"backend": ["ddp", "mpi"]}),
        ("optimizer = 'adam:lr=1'", {"optimizer": "adam:lr=1"}),
        ("control = false", {"control": False}),
        ("output = '-'", {"output": "-"}),
    ],
)
def test_settings_are_read_as_their_flags_take_them(written, read):
    assert settings(written) == read


def test_paths_of_settings_are_relative_to_their_file():
    Path("conf").mkdir()
    assert settings("hostfile = 'hosts'", path="conf/run.toml") == {"hostfile": "conf/hosts"}
    assert settings("hostfile = '/etc/hosts'", path="conf/run.toml") == {"hostfile": "/etc/hosts"}
    for written, read in (("../before/bin/python", "conf/../before/bin/python"), ("python3", "python3")):
        assert settings(f"[gate]\nagainst = '{written}'", "gate", "conf/run.toml") == {"against": read}


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("bugdet = 3\n", ["'bugdet'", "Settings are named like flags"]),
        ("[run]\nsteps = 60\nwarmup = 10", ["[run] warmup is of an earlier version", "--steps 60:warmup=10"]),
        ("[run]\ndata-dir = 'd'", ["[run] data-dir is of an earlier version", "is now: --data d"]),
        ("export_json = 'a.json'", ["export_json is of an earlier version", "is now: --export a.json"]),
        ("ssh_port = 22\nhostfile = 'h'", ["is now: --engine auto:port=22"]),
        ("exclude = ['a', 'b']", ["is now: -H '^a,^b'"]),
        ("wide = true", ["wide is of an earlier version", "Leave it out."]),
        ("[aa]\nsteps = 3", ["aa is of an earlier version", "now 'run'"]),
        ("['data status']\nx = 3", ["now 'setup data'"]),
        ("stepz = 3", ["'stepz'", "Did you mean steps?"]),
        ("[runn]\nsteps = 3", ["'runn'", "Did you mean run?"]),
        ("['setup dato']\nx = 1", ["'setup dato'", "Did you mean setup data"]),
        ("[run]\nagainst = 'python'", ["[run] there is no setting 'against'"]),
        ("steps = true", ["steps cannot be true", "a number, or text in quotes"]),
        ("steps = [3]", ["steps cannot be [3]"]),
        ("control = 1", ["control cannot be 1", "true or false"]),
        ("backend = ['ddp', ['mpi']]", ["backend cannot be", "or a list of them"]),
        ("[run]\nsteps = true", ["[run] steps cannot be true"]),
        ("steps = ?", ["is not valid TOML", "line 1"]),
        ("a = " + "[" * 5000, ["is not valid TOML"]),
    ],
)
def test_wrong_settings_are_refused_with_file_and_key(written, says):
    with pytest.raises(UsageError) as refused:
        settings(written)
    assert [text for text in ["run.toml", *says] if text not in str(refused.value)] == []


def test_files_that_are_no_settings_are_refused():
    Path("bytes.toml").write_bytes(b"\xff")
    for name in ("bytes.toml", "missing.toml", ".", "/dev/zero", "x" * 300):
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
    assert found == (Path("../../pyproject.toml"), {"steps": 60})
    assert read_settings(found[0]) == found[1]


def test_pyproject_that_is_not_toml_is_refused_if_it_may_have_settings():
    write("[tool.other\n", "pyproject.toml")
    assert find_settings() is None
    write("[tool.ringside\n", "pyproject.toml")
    with pytest.raises(UsageError, match="is not valid TOML"):
        find_settings()


# ---- in a command ----


@pytest.fixture
def requested(monkeypatch, capfd):
    """Return the request of a command line, with what was printed."""
    requests = []

    def reading(*given, **more):
        requests.append(read_request(*given, **more))
        return requests[0]

    monkeypatch.setattr(running, "read_request", reading)
    monkeypatch.setattr("compare.experiment.plan", lambda *_: sys.exit(0))

    def call(*arguments):
        requests.clear()
        monkeypatch.setattr(sys, "argv", ["ringside", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return (requests or [ended.value.code])[0], err

    return call


def test_flags_of_a_file_are_taken_and_named(requested):
    use(
        'backend = ["ddp", "manual"]\nbudget = "5m"\ncontrol = false\nnum-proc = 3\n'
        'engine = "local:interface=lo"\ndevice = "cpu"'
    )
    request, err = requested(*RUN)
    assert [arm.label for arm in request.arms] == ["ddp", "manual"]
    assert (request.config["budget_seconds"], request.config["device"]) == (300, "cpu")
    assert (request.control, request.allocation.hosts[0].slots) == (False, 3)
    assert request.allocation.interface == "lo"
    assert "Settings of pyproject.toml: backend, budget, control, num_proc, engine, device" in err


def test_flags_of_the_command_line_win_over_the_file(requested):
    use('backend = ["ddp"]\nsteps = 60\n[run]\nbaseline = "ddp"\n')
    request, err = requested(*RUN, "--backend", "mpi", "--baseline", "mpi")
    assert [arm.label for arm in request.arms] == ["mpi"]
    assert (request.baseline, request.config["steps"]) == ("mpi", 60)
    assert "Settings of pyproject.toml: steps\n" in err


def test_flags_of_the_command_line_replace_their_rivals_in_the_file(requested):
    write("node1 slots=2\n", "hosts")
    use('hostfile = "hosts"\nsteps = 90\n')
    request, _ = requested(*RUN, "-H", "localhost:5", "--steps", "2epochs")
    assert [host.slots for host in request.allocation.hosts] == [5]
    assert (request.config["steps"], request.config["epochs"]) == (None, 2)


def test_settings_are_recorded_as_flags(requested):
    use('backend = ["ddp", "manual"]\ncontrol = false\nenv = "KEY=hunter2"')
    request, _ = requested(*RUN)
    words = ["--backend", "ddp", "--backend", "manual", "--no-control", "--env", "KEY="]
    assert list(request.command[3:-1]) == words[:-1]
    assert request.command[-1].startswith(words[-1])
    assert "hunter2" not in str(request.command)


def test_names_of_data_sets_are_no_paths_of_a_file():
    Path("conf").mkdir()
    for written, read in (
        ("mnist", "mnist"),
        ("data", "conf/data"),
        ("digits:folder=/d", "digits:folder=/d"),
    ):
        assert settings(f"data = '{written}'", path="conf/run.toml") == {"data": read}


def test_settings_of_the_nearest_pyproject_are_recorded(requested, folder, monkeypatch):
    write("[tool.ringside]\nsteps = 90\n", "pyproject.toml")
    (folder / "inner").mkdir()
    monkeypatch.chdir(folder / "inner")
    request, err = requested(*RUN)
    assert request.config["steps"] == 90
    assert "Settings of ../pyproject.toml: steps" in err
    assert list(request.command) == ["ringside", *RUN, "--steps", "90"]


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("device = 'gpu'", "pyproject.toml: device: 'gpu' is not one of"),
        ("num-proc = 0", "pyproject.toml: num_proc: "),
        ("[run]\nbudget = 'soon'", "pyproject.toml: budget: 'soon' is not a length of time"),
        ("help = true", "there is no setting 'help'"),
    ],
)
def test_values_that_a_flag_refuses_are_refused_with_file_and_key(requested, written, says):
    use(written)
    code, err = requested(*RUN)
    assert code == 2
    assert says in err


@pytest.mark.parametrize(("written", "flag"), [("quiet = true", ""), ("verbose = true", "-q"), ("", "-q")])
def test_quiet_command_does_not_name_its_settings(requested, written, flag):
    use(f"steps = 90\n{written}\n")
    request, err = requested(*RUN, *flag.split())
    assert (request.config["steps"], err) == (90, "")


def test_help_needs_no_settings(requested):
    write("[tool.ringside]\nstepz = 90\n", "pyproject.toml")
    assert requested("run", "--help")[0] in {0, None}
    assert requested(*RUN)[0] == 2


def test_settings_hold_for_every_command_by_its_long_flags(requested):
    write(
        "[tool.ringside]\nformat = 'json'\nweak = false\n[tool.ringside.'setup data']\ndata = 'd'\n",
        "pyproject.toml",
    )
    Path("runs").mkdir()
    assert requested("report")[1] == "Settings of pyproject.toml: format\n"
    assert "Settings of pyproject.toml: format, data\n" in requested("setup", "data", "--check")[1]

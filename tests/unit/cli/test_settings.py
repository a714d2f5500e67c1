"""Flags from a file: the command line wins."""

import sys
from pathlib import Path

import pytest
import typer

from compare.cli import main as cli
from compare.cli import run as running
from compare.cli import settings
from compare.cli.requests import read_request
from compare.cli.times import read_seconds

RUN = ["run", "--dry-run"]


@pytest.fixture
def requested(monkeypatch, capfd, tmp_path):
    """Return the request of a command line, with what was printed."""
    monkeypatch.chdir(tmp_path)
    requests = []
    read = read_request

    def reading(*given, **more):
        requests.append(read(*given, **more))
        return requests[0]

    monkeypatch.setattr(running, "read_request", reading)
    monkeypatch.setattr("compare.experiment.plan", lambda *_: None)
    monkeypatch.setattr(running, "_print_plan", lambda _, verbose: None)

    def call(*arguments):
        requests.clear()
        monkeypatch.setattr(sys, "argv", ["compare", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return (requests or [ended.value.code])[0], err

    return call


def write(text, name="run.toml"):
    Path(name).write_text(text)


def test_flags_of_a_file_are_taken_and_named(requested):
    write('backend = ["ddp", "manual"]\nbudget = "5m"\ncontrol = false\nnum-proc = 3\nwait-for-hosts = "2m"')
    request, err = requested(*RUN, "--config", "run.toml")
    assert [arm.label for arm in request.arms] == ["ddp", "manual"]
    assert request.config["budget_seconds"] == 300
    assert (request.control, request.allocation.hosts[0].slots) == (False, 3)
    assert request.wait_seconds == 120
    assert "Settings of run.toml: backend, budget, control, num_proc, wait_for_hosts" in err


def test_flags_of_the_command_line_win_over_the_file(requested):
    write('backend = ["ddp"]\nsteps = 60\n[run]\nbaseline = "ddp"\n')
    request, err = requested(*RUN, "--config", "run.toml", "--backend", "mpi", "--baseline", "mpi")
    assert [arm.label for arm in request.arms] == ["mpi"]
    assert (request.baseline, request.config["steps"]) == ("mpi", 60)
    assert "Settings of run.toml: steps\n" in err


def test_flags_of_the_command_line_replace_their_rivals_in_the_file(requested):
    write("node1 slots=2\n", "hosts")
    write('hostfile = "hosts"\nsteps = 90\n')
    request, _ = requested(*RUN, "--config", "run.toml", "-H", "localhost:5", "--epochs", "2")
    assert [host.slots for host in request.allocation.hosts] == [5]
    assert (request.config["steps"], request.config["epochs"]) == (None, 2)


def test_settings_of_the_nearest_pyproject_are_recorded(requested, monkeypatch):
    write("[tool.ringside]\nsteps = 90\n", "pyproject.toml")
    folder = Path.cwd()
    (folder / "inner").mkdir()
    monkeypatch.chdir(folder / "inner")
    request, err = requested(*RUN)
    assert request.config["steps"] == 90
    assert "Settings of ../pyproject.toml: steps" in err
    assert list(request.command) == ["compare", *RUN, "--config", str(folder / "pyproject.toml")]
    named, _ = requested(*RUN, "--config", str(folder / "pyproject.toml"))
    assert named.config == request.config


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("stepz = 3", "run.toml: there is no setting 'stepz'"),
        ("device = 'gpu'", "run.toml: device: 'gpu' is not one of"),
        ("num-proc = 0", "run.toml: num_proc: "),
        ("[run]\nbudget = 'soon'", "run.toml: budget: 'soon' is no time. Use seconds, or a unit"),
        ("yes = true", "there is no setting 'yes'"),
        ("config = 'other.toml'", "there is no setting 'config'"),
    ],
)
def test_wrong_settings_name_their_file(requested, written, says):
    write(written)
    code, err = requested(*RUN, "--config", "run.toml")
    assert code == 2
    assert says in err


@pytest.mark.parametrize(("written", "flag"), [("quiet = true", ""), ("verbose = true", "-q"), ("", "-q")])
def test_quiet_command_does_not_name_its_settings(requested, written, flag):
    write(f"steps = 90\n{written}\n")
    request, err = requested(*RUN, *flag.split(), "--config", "run.toml")
    assert (request.config["steps"], err) == (90, "")


def test_contradiction_with_a_setting_names_file_and_keys(requested):
    write("epochs = 2\nquiet = true\n")
    code, err = requested(*RUN, "--config", "run.toml", "--hosts", "a:2", "--nproc-per-node", "3")
    assert code == 2
    assert "\n  With settings of run.toml: epochs, quiet.\n" in err


def test_help_needs_no_settings(requested):
    write("[tool.ringside]\nstepz = 90\n", "pyproject.toml")
    assert requested("run", "--help")[0] in {0, None}
    assert requested(*RUN)[0] == 2


def test_settings_hold_for_listing_commands_and_leave_their_output(requested):
    write("[tool.ringside.history]\njson = true\n", "pyproject.toml")
    Path("runs").mkdir()
    _, err = requested("history")
    assert err == "Settings of pyproject.toml: json\n"


def every_command(group, names=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from every_command(command, (*names, name))
        else:
            yield " ".join((*names, name)), command


def test_keys_of_settings_are_the_long_options_of_the_parser():
    commands = dict(every_command(typer.main.get_group(cli.app)))
    assert commands.keys() == settings._HINTS.keys()
    for name, command in commands.items():
        flags = settings._flags_of(settings._HINTS[name])
        keys = set()
        for option in (one for one in command.params if one.param_type_name == "option"):
            first = next(each for each in option.opts if each.startswith("--"))
            key = first.removeprefix("--").replace("-", "_")
            if key in {"help", "config", "yes"} or (option.hidden and key not in flags):
                continue
            keys.add(key)
            assert flags[key].parameter == option.name, (name, key)
        assert flags.keys() == keys, name


@pytest.mark.parametrize(("written", "seconds"), [("90", 90), ("90s", 90), ("1.5 h", 5400), ("5m", 300)])
def test_time_is_read_with_or_without_a_unit(written, seconds):
    assert read_seconds(written) == seconds


@pytest.mark.parametrize("written", ["", "m", "5 days", "1e", "5m5", "x" * 10_000])
def test_time_that_is_none_is_refused(written):
    with pytest.raises(typer.BadParameter) as refused:
        read_seconds(written)
    assert "90s, 5m, 1h" in str(refused.value)

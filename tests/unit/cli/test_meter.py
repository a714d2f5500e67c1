"""Test what ``ringside meter`` takes, prints, exports and exits with; no launcher is started."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from compare.cli import main as cli
from compare.errors import OutputError
from compare.experiment import meter
from compare.launch import script
from compare.launch.script import Ended
from compare.meter import OUTPUT_VARIABLE, SETTINGS_VARIABLE
from compare.schema.metered import METER_FILE, Unswitched
from compare.system.files import write_json
from tests.unit.metered import a_metered

UNMEASURED, INTERRUPTED = 17, 130
WELL = Ended(0, was_interrupted=False)


@pytest.fixture
def ringside(monkeypatch, capfd, tmp_path):
    """Call the program; ``train.py`` is a script that leaves ``record`` and ends as told."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(script, "find_launcher", lambda name: f"/bin/{name}")
    Path("train.py").touch()
    started = []

    def call(*arguments, record=None, ended=WELL):
        def run_attached(commands):
            [command] = commands
            started.append(command)
            if record is not None:
                write_json(Path(command.environment[OUTPUT_VARIABLE], METER_FILE), record)
            print("the script's own output", flush=True)
            return ended

        monkeypatch.setattr(meter, "run_attached", run_attached)
        monkeypatch.setattr(sys, "argv", ["ringside", *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        return exited.value.code or 0, *capfd.readouterr(), started

    return call


def test_meter_prints_its_table_after_the_scripts_output(ringside):
    code, out, err, _ = ringside("meter", "train.py", record=a_metered())
    assert code == 0
    assert out.startswith("the script's own output\n")
    assert "Synchronising costs 4.08 ms of a step of 10.43 ms: 39 % (39–40)." in out
    assert err == ""


def test_meter_hands_everything_after_the_script_to_it(ringside):
    """Also what looks like flags of the meter, and a second ``--``."""
    own = ["--pairs", "3", "-np", "9", "--", "--help"]
    *_, [command] = ringside("meter", "-np", 4, "--pairs", 30, "train.py", *own, record=a_metered())
    assert list(command.argv[-len(own) - 1 :]) == ["train.py", *own]
    assert "--nproc_per_node=4" in command.argv
    assert json.loads(command.environment[SETTINGS_VARIABLE])["pairs"] == 30


def test_meter_launches_by_the_launcher_that_is_named(ringside):
    *_, [command] = ringside("meter", "--launcher", "mpirun", "train.py", record=a_metered())
    assert command.argv[0] == "/bin/mpirun"


def test_meter_verbose_prints_the_command_line(ringside):
    _, _, err, _ = ringside(
        "meter", "-v", "--launcher", "mpirun", "train.py", "--lr", 0.1, record=a_metered()
    )
    assert err.startswith("/bin/mpirun ")
    assert err.endswith("train.py --lr 0.1\n")


def test_meter_sets_variables_for_the_ranks(ringside):
    *_, [command] = ringside("meter", "-x", "NCCL_DEBUG=INFO", "train.py", record=a_metered())
    assert command.environment["NCCL_DEBUG"] == "INFO"
    assert not any("NCCL_DEBUG" in word for word in command.argv)


@pytest.mark.parametrize("status", [3, -9])
def test_meter_of_a_script_that_fails_exits_as_it_and_shows_what_there_is(ringside, status):
    ended = Ended(status, was_interrupted=False)
    code, out, err, _ = ringside("meter", "train.py", record=a_metered(pairs=5, ended=""), ended=ended)
    assert code == (3 if status == 3 else 137)
    assert "INCOMPLETE" in out
    assert "error: train.py failed" in err


@pytest.mark.parametrize(("status", "code"), [(3, 3), (0, OutputError.exit_code)])
def test_meter_says_where_a_record_stayed_that_could_not_be_fetched(ringside, monkeypatch, status, code):
    """Of a script that failed, too, after what it failed of."""
    monkeypatch.setattr(meter, "is_local", lambda _host: False)
    monkeypatch.setattr(
        meter, "_find_place", lambda allocation, _: SimpleNamespace(hosts=allocation.hosts, carrier=None)
    )
    monkeypatch.setattr(
        meter, "script_commands", lambda *_: [SimpleNamespace(argv=("torchrun",), environment={})]
    )

    def fetch(*_):
        raise OutputError("It stayed on far.", remedy="Copy it.")

    monkeypatch.setattr(meter, "_fetch", fetch)
    found, _, err, _ = ringside("meter", "train.py", ended=Ended(status, was_interrupted=False))
    assert found == code
    assert "It stayed on far." in err
    assert ("train.py failed" in err) is bool(status)


def test_meter_of_a_script_that_fails_at_once_leaves_only_the_error(ringside):
    code, out, err, _ = ringside("meter", "train.py", ended=Ended(1, was_interrupted=False))
    assert (code, out) == (1, "the script's own output\n")
    assert err.startswith("error: train.py failed")


def test_meter_that_is_interrupted_shows_what_there_is_and_exits_with_130(ringside):
    ended = Ended(1, was_interrupted=True)
    code, out, err, _ = ringside("meter", "train.py", record=a_metered(pairs=5, ended=""), ended=ended)
    assert (code, err) == (INTERRUPTED, "Interrupted.\n")
    assert "INCOMPLETE" in out


FSDP = Unswitched(name="FullyShardedDataParallel", why="It keeps a part of the model.", arm="fsdp")


@pytest.mark.parametrize(
    ("record", "found"),
    [
        (None, "No rank took a step"),
        (a_metered(pairs=0, blocks=[], steps=0), "No rank took a step"),
        (a_metered(pairs=0, steps=40, ended="The script ended after 40 steps."), "after 40 steps."),
        (a_metered(pairs=0, unswitched=[FSDP]), "FullyShardedDataParallel: It keeps a part"),
        (a_metered(pairs=0, ended="Ranks disagree."), "Ranks disagree."),
    ],
)
def test_meter_that_could_not_measure_says_why_and_exits_with_17(ringside, record, found):
    code, _, err, _ = ringside("meter", "train.py", record=record)
    assert code == UNMEASURED
    assert err.startswith("error: train.py ran to its end, but")
    assert found in err


def test_meter_without_such_a_script_starts_nothing(ringside):
    code, _, err, started = ringside("meter", "trian.py")
    assert (code, started) == (2, [])
    assert "There is no script trian.py." in err


def test_meter_by_mpirun_on_another_host_says_how_to_start_it(ringside):
    code, _, err, started = ringside("meter", "--launcher", "mpirun", "-H", "192.0.2.7:2", "train.py")
    assert (code, started) == (2, [])
    assert "mpirun -H … python -m ringside.meter train.py" in err


def test_meter_exports_and_report_shows_it_again(ringside):
    _, shown, _, _ = ringside(
        "meter", "--export", "m.json", "--export", "m.html", "train.py", record=a_metered()
    )
    exported = json.loads(Path("m.json").read_text())
    assert exported["figures"]["exposed_share"]["mean"] == pytest.approx(0.39, abs=0.01)
    assert exported["record"]["command"] == ["train.py", "--epochs", "3"]
    assert "Step time in each pair of blocks" in Path("m.html").read_text()
    code, again, _, _ = ringside("report", "last")
    assert code == 0
    assert shown.endswith(again)


def test_meter_that_exports_to_standard_output_prints_elsewhere(ringside):
    _, out, err, _ = ringside("meter", "--export", "-", "train.py", record=a_metered())
    assert json.loads(out.removeprefix("the script's own output\n"))["figures"]["pairs"] == 20
    assert "Synchronising costs" in err

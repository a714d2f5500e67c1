"""How a script is started under the meter."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from compare.meter import OUTPUT_VARIABLE, SETTINGS_VARIABLE, command
from compare.schema.metered import MeterSettings


@pytest.fixture
def started(monkeypatch):
    """Start the command; return the program, its arguments and its settings."""

    def start(*arguments, flags=()):
        found = []
        monkeypatch.setattr(os, "execve", lambda *call: found.append(call))
        monkeypatch.setattr(sys, "argv", ["meter.py", *arguments])
        monkeypatch.setattr(sys, "orig_argv", [sys.executable, *flags, *arguments])
        command.main(list(arguments))
        ((_, words, environment),) = found
        return words[1:], msgspec.json.decode(environment[SETTINGS_VARIABLE], type=MeterSettings), environment

    return start


def test_the_scripts_arguments_are_its_own(started):
    words, settings, _ = started(
        "--pairs", "5", "train.py", "--pairs", "7", "-m", flags=("-m", "ringside.meter")
    )
    assert words == ["train.py", "--pairs", "7", "-m"]
    assert settings == MeterSettings(pairs=5)


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        (["-u", "-m", "ringside.meter"], ["-u"]),
        (["-X", "dev", "-mringside.meter"], ["-X", "dev"]),
        (["-um", "ringside.meter"], ["-u"]),
    ],
)
def test_the_interpreters_flags_are_kept(started, flags, kept):
    assert started("train.py", flags=flags)[0] == [*kept, "train.py"]


def test_a_module_is_run_as_python_runs_it(started):
    words, _, _ = started("-m", "package.train", "--epochs", "3", flags=("-m", "ringside.meter"))
    assert words == ["-m", "package.train", "--epochs", "3"]


def test_without_measuring_there_are_no_pairs(started, tmp_path):
    words = ("--no-measure", "--output", str(tmp_path), "train.py")
    _, settings, environment = started(*words, flags=("-m", "ringside.meter"))
    assert settings.pairs == 0
    assert environment[OUTPUT_VARIABLE] == str(tmp_path)


@pytest.mark.parametrize("words", [[], ["--block", "0", "train.py"], ["--no-such", "train.py"]])
def test_wrong_options_are_refused_before_the_script_starts(started, words, capsys):
    with pytest.raises(SystemExit) as error:
        started(*words, flags=("-m", "ringside.meter"))
    assert error.value.code == 2
    assert "ringside.meter" in capsys.readouterr().err


def test_a_script_sees_what_it_would_see_without_the_meter(tmp_path):
    """It has its own folder and main module, another sitecustomize works, and torch is not imported yet."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "sitecustomize.py").write_text("import os; os.environ['SEEN'] = 'yes'\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "print(__name__, __file__, sys.path, sys.argv, 'torch' in sys.modules, os.environ.get('SEEN'))\n"
        "print(sys.modules['__main__'].__dict__ is globals(), sys.modules['sitecustomize'].__file__)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "elsewhere")}
    alone, metered = (
        subprocess.run(
            [sys.executable, *before, str(script), "--flag"],
            env=environment,
            cwd=command.HOOK.parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
        for before in ((), ("-m", "ringside.meter"))
    )
    assert "yes" in alone.stdout
    assert (metered.stdout, metered.stderr) == (alone.stdout, alone.stderr)

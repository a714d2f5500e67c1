"""Text and folders from elsewhere: none steers the terminal."""

from pathlib import Path

import pytest
import typer
from rich.console import Console

from compare.cli import main as cli
from compare.cli import output
from compare.doctor import availability
from compare.doctor.facts import Library
from compare.errors import HostError, UsageError
from compare.report import FORMATS, document_of, write
from compare.report.formats.terminal import ConsoleDocument
from compare.schema import environment
from compare.schema.results import ArmVerification, Failure, Verification
from tests.unit.factories import a_run

BELL = "\x1b]0;mine\x07"


def test_notes_and_errors_print_escape_sequences_as_text(capsys):
    error = HostError(f"host {BELL}", found=BELL, remedy=BELL)
    error.add_note(f"kept {BELL}")
    output.print_notes(error)
    output.print_error(error)
    printed = capsys.readouterr().err
    assert printed.count("\\x1b]0;mine\\x07") == 4
    assert BELL not in printed


def test_progress_prints_escape_sequences_as_text():
    shown = Console(record=True, width=80)
    output.make_say(shown)(f"topology {BELL}")
    assert BELL not in shown.export_text(styles=False)


def test_verification_prints_escape_sequences_as_text(capsys):
    failure = Failure(arm="mpi", round=1, kind="LaunchError", message=f"printed {BELL}\x1b[2J\x9b31m\u202e")
    found = Verification(run=a_run(), arms=[ArmVerification(arm="mpi", failure=failure, seconds=1.0)])
    Console(width=200).print(ConsoleDocument(document_of(found)))
    for printed in (capsys.readouterr().out, *(write(document_of(found), form) for form in FORMATS)):
        assert "mine" in printed
        assert not {"\x1b", "\x9b", "\u202e"} & set(printed)


def test_removed_working_folder_is_named(monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError, match="working folder no longer exists"):
        typer.main.get_command(cli.app).main(["backends"], standalone_mode=False)


def test_checkout_with_a_colon_in_its_path_is_refused():
    with pytest.raises(UsageError, match="/home/a:b"):
        environment.import_path({}, Path("/home/a:b"))


@pytest.mark.parametrize(("missing", "remedy"), [(True, "pip install torch"), (False, "import torch")])
def test_torch_that_does_not_load_is_not_to_be_installed_again(monkeypatch, missing, remedy):
    """A wrong TORCH_LOGS stops its import as well."""
    broken = Library(problem="bad TORCH_LOGS", missing=missing)
    monkeypatch.setattr(
        availability,
        "load",
        lambda names, environ=None: {name: broken if name == "torch" else Library() for name in names},
    )
    found = availability.survey(["ddp"]).backends["ddp"]
    assert remedy in found.remedy
    assert ("pip" in found.remedy) == missing

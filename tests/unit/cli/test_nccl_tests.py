"""Flags and words of nccl-tests are answered with those of this program."""

import pytest

from compare.cli import main as cli
from compare.cli.collectives import replacement_for
from compare.errors import UsageError


def refused(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["compare", *words])
    with pytest.raises(UsageError) as caught:
        cli._call()
    return caught.value


@pytest.mark.parametrize(
    ("words", "flag", "ours"),
    [
        (["-g", "2"], "-g", "-np N --device cuda"),
        (["-d", "half"], "-d", "half is float16"),
        (["-m1"], "-m", "in a row"),
        (["-b", "8", "-e", "128M", "-f", "2", "-g", "1"], "-g", "-np N"),
        (["--warmup_iters", "5"], "--warmup-iters", "-w here"),
    ],
)
def test_flag_of_nccl_tests_is_answered_with_ours(monkeypatch, words, flag, ours):
    error = refused(monkeypatch, "collectives", *words)
    assert error.what == f"{flag} is a flag of nccl-tests, not of this program."
    assert ours in error.remedy
    assert error.exit_code == 2


def test_dtype_of_nccl_tests_is_answered_with_the_name_in_torch(monkeypatch):
    error = refused(monkeypatch, "collectives", "--dtype", "int8,half")
    assert error.what == "--dtype half is not known."
    assert error.remedy == "Use --dtype float16."


def test_flag_that_nccl_tests_lack_too_is_unknown(monkeypatch):
    assert replacement_for("--nonsense") == ""
    assert "No such option: --nonsense" in refused(monkeypatch, "collectives", "--nonsense").what
    assert "No such option: -g" in refused(monkeypatch, "run", "-g", "1").what

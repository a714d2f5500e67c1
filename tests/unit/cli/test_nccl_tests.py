"""Flags and words of nccl-tests are answered with those of this program."""

import pytest

from compare.cli import main as cli
from compare.cli.nccl_tests import answer_to
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
        (["--ngpus", "2"], "--ngpus", "-np N"),
        (["-d", "half"], "-d", "half is float16"),
        (["-o", "sum"], "-o", "--op"),
        (["-c", "1"], "-c", "always checked"),
        (["-i", "1M"], "-i", "-f 2"),
        (["-z", "0"], "-z", "Leave it out"),
        (["-m1"], "-m", "in a row"),
        (["-R", "1"], "-R", "not registered"),
        (["-G", "1"], "-G", "CUDA graph"),
        (["-N", "3"], "-N", "--repeats N"),
        (["-b", "8", "-e", "128M", "-f", "2", "-g", "1"], "-g", "-np N"),
        (["--stepfactor", "2"], "--stepfactor", "-f here"),
        (["--warmup_iters", "5"], "--warmup-iters", "-w here"),
    ],
)
def test_flag_of_nccl_tests_is_answered_with_ours(monkeypatch, words, flag, ours):
    error = refused(monkeypatch, "collectives", *words)
    assert error.what == f"{flag} is a flag of nccl-tests, not of this program."
    assert ours in error.remedy
    assert error.exit_code == 2


@pytest.mark.parametrize(
    ("word", "name"), [("half", "float16"), ("float", "float32"), ("double", "float64"), ("int", "int32")]
)
def test_dtype_of_nccl_tests_is_answered_with_the_name_in_torch(monkeypatch, word, name):
    error = refused(monkeypatch, "collectives", "--dtype", f"int8,{word}")
    assert error.what == f"--dtype {word} is not known."
    assert error.remedy == f"Use --dtype {name}."


def test_flag_that_nccl_tests_lack_too_is_unknown(monkeypatch):
    assert answer_to("--nonsense") == ""
    assert "No such option: --nonsense" in refused(monkeypatch, "collectives", "--nonsense").what
    assert "No such option: -g" in refused(monkeypatch, "run", "-g", "1").what

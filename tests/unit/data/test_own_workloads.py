"""The folder of a workload of the user's own."""

from __future__ import annotations

import pytest

from compare import data
from compare.data import own
from compare.errors import UsageError


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("def make(): ...")
    return file


def test_own_source_names_folder_file_and_function(file):
    source = data.own_source(f"{file}:make")
    assert (source.name, source.directory, source.workload) == ("own", str(file.parent), "train.py:make")


@pytest.mark.parametrize("written", ["train.py", "train:make", "train.py:", "train.py:a-b", "no.py:make"])
def test_own_source_refuses_what_names_no_function_of_a_file(file, monkeypatch, written):
    monkeypatch.chdir(file.parent)
    with pytest.raises(UsageError, match="--workload"):
        data.own_source(written)


@pytest.mark.parametrize("name", ["random.py", "queue.py", "torch/__init__.py", "compare.py"])
def test_own_source_refuses_a_folder_that_hides_a_module(file, name):
    (file.parent / name).parent.mkdir(exist_ok=True)
    (file.parent / name).write_text("")
    with pytest.raises(UsageError, match=f"hides the module {name.partition('/')[0].removesuffix('.py')}"):
        data.own_source(f"{file}:make")


def test_own_source_accepts_names_that_hide_nothing(file):
    (file.parent / "torch").mkdir()  # without code, it is no package
    (file.parent / "random.txt").write_text("")
    (file.parent / "nets.py").write_text("")
    assert data.own_source(f"{file}:make").workload.endswith(":make")


def test_contents_are_the_users_files_and_the_hash_is_over_code(file):
    folder, before = file.parent, own.code_digest(file.parent)
    others = ["__pycache__/train.pyc", ".git/config", "runs/1/results.json", "venv/pyvenv.cfg", "venv/lib.py"]
    for name in [*others, "words.txt"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    assert own.code_digest(folder) == before
    assert sorted(own.contents(folder)) == ["train.py", "words.txt"]
    (folder / "models").mkdir()
    (folder / "models" / "net.py").write_text("")
    assert own.code_digest(folder) != before


def test_digest_is_over_names_and_bytes():
    digests = {own.digest(one) for one in ({"a": b"b"}, {"ab": b""}, {"a": b"", "b": b""}, {})}
    assert len(digests) == 4
    assert own.digest({"a": b"1", "b": b"2"}) == own.digest({"b": b"2", "a": b"1"})


def test_a_large_folder_is_not_copied_and_known_by_its_code(file, monkeypatch, tmp_path):
    source = data.own_source(f"{file}:make")
    there = tmp_path / "there"
    there.mkdir()
    (there / "train.py").write_text(file.read_text())
    (file.parent / "words.txt").write_text("x" * 100)
    assert data.is_copied(source)
    assert not data.is_in(there, "own", data.key_of(source)), "it lacks the words"
    monkeypatch.setattr(data.source, "MOST_BYTES", 100)
    assert not data.is_copied(source)
    assert data.is_in(there, "own", data.key_of(source)), "its data may be elsewhere"
    (there / "train.py").write_text("def make(): return 1")
    assert not data.is_in(there, "own", data.key_of(source))
    assert not data.is_in(tmp_path / "nowhere", "own", data.key_of(source))

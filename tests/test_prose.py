"""The project's prose is plain English, and the checker finds what is not."""

from __future__ import annotations

import pytest

from tests import prose


def test_prose_of_the_whole_tree_is_plain_english():
    found = [str(violation) for violation in prose.violations()]
    assert not found, "\n".join(found)


def test_prose_exceptions_name_files_that_exist():
    assert all((prose.ROOT / place.split(":")[0]).is_file() for place in prose.EXCEPTIONS)


def long(count):
    return " ".join(["Word", *["word"] * (count - 1)]) + "."


@pytest.mark.parametrize(
    ("path", "text", "rule"),
    [
        ("compare/planted.py", f'"""{long(21)}"""\n', "summary"),
        ("compare/planted.py", f'"""Count.\n\nArgs:\n    a: {long(36)}\n"""\n', "sentence"),
        ("compare/planted.py", "# Word" + "\n# word" * 35 + "\n", "sentence"),
        ("compare/planted.py", f"a = 1  # {long(36)}\n", "sentence"),
        ("compare/planted.py", 'a = f"Host {b}: ' + "word " * 34 + '{c}"\n', "sentence"),
        ("compare/planted.py", '"""Count what a\nrank is\ntold."""\n', "word"),
        ("compare/planted.py", "def last_words(): ...\n", "name"),
        ("compare/planted.py", "a = 1\n" * 401, "file"),
        ("compare/planted.py", "def f():\n" + "    a = 1\n" * 60, "function"),
        ("tests/planted.py", f"def test_{'a' * 66}(): ...\n", "name"),
        ("docs/planted.md", f"```\ncode\n```\n| a | {long(36)} |", "sentence"),
        ("Makefile", f"help: ## {long(36)}", "sentence"),
    ],
)
def test_prose_finds_what_is_planted(path, text, rule):
    assert {violation.rule for violation in prose.of_text(path, text)} == {rule}


def test_prose_counts_neither_code_nor_what_is_apart():
    document = f"# {long(35)}\n{long(35)} {long(35)}\n\n| {long(35)} | {long(35)} |\n\n```\n{long(45)}\n```\n"
    assert prose.of_text("docs/planted.md", document) == []
    comments = f"a = 1  # {long(35)}\n# {long(35)}\n"
    source = f'"""Count ``whoever``.\n\n- {long(35)}\n- {long(35)}\n"""\n\n{comments}'
    assert prose.of_text("compare/planted.py", source) == []


def test_prose_of_pages_has_a_mean_and_names_telegrams(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        f"# A heading?\n\n{long(10)} {long(20)}\n\nSo is this.\n\n| a cell | {long(30)} |\n|---|---:|\n"
    )
    *telegrams, mean = prose.summary_of_pages([page]).splitlines()
    assert telegrams == ["page.md: begins as a telegram: So is this."]
    assert mean == "4 sentences of README and docs, mean 15.8 words"

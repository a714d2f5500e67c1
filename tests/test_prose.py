"""The project's prose is plain English, and the checker finds what is not."""

from __future__ import annotations

import pytest

from tests import prose


def test_prose_of_the_whole_tree_is_plain_english():
    found = [str(violation) for violation in prose.violations()]
    assert not found, "\n".join(found)


def test_prose_exceptions_name_files_that_exist():
    places = [*prose.SKIPPED_FILES, *prose.LONG_FILES, *prose.LONG_FUNCTIONS, *prose.LONG_SENTENCES]
    files = {place.split(":")[0] for place in (*places, *prose.ALLOWED_WORDS)}
    assert not {file for file in files if not (prose.ROOT / file).is_file()}


def rules(text, path="compare/planted.py"):
    return [violation.rule for violation in prose.of_text(path, text)]


def long(count):
    return " ".join(["Word", *["word"] * (count - 1)]) + "."


GOOD = '''"""Count the ranks of a launch.

A rank is one process, e.g. the first of a host. {twenty} {twenty}

Args:
    ranks: the ranks, numbered from 0. {twenty}
    hosts: {nineteen}

- One item {eighteen}
- Another item {eighteen}

name        what it holds and which part of the program reads it
other       a value that is not read by anything else here at all

Example::

    a literal block may hold a long line of code that nobody would count as a sentence, whatever it says here
"""

LIMIT_SECONDS = 3.0
"""Maximum time for a launch."""


def count(ranks, hosts):
    """Count ``whoever`` and ``last_words``, which are code."""
    # A comment of one line. {twenty}
    total = ranks * hosts  # {twenty}
    raise ValueError(f"Host {{hosts}}: {eighteen} {{ranks}} {nineteen}")
'''


def test_prose_of_good_python_has_no_violation():
    text = GOOD.format(twenty=long(35), nineteen=long(19), eighteen=long(18))
    assert prose.of_text("compare/planted.py", text) == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        pytest.param(f'"""{long(21)}"""\n', "summary", id="a summary of 21 words"),
        pytest.param(f'"""Count.\n\n{long(36)}\n"""\n', "sentence", id="a docstring's sentence"),
        pytest.param(f'"""Count.\n\nArgs:\n    a: {long(36)}\n"""\n', "sentence", id="an entry"),
        pytest.param(f'"""Count.\n\n- {long(5)} {long(36)}\n"""\n', "sentence", id="a list item"),
        pytest.param(f"# {long(36)}\n", "sentence", id="a comment"),
        pytest.param("# Word" + "\n# word" * 35 + "\n", "sentence", id="a comment of many lines"),
        pytest.param(f"a = 1  # {long(36)}\n", "sentence", id="a comment at the end"),
        pytest.param(f'a = "{long(36)}"\n', "sentence", id="a message"),
        pytest.param('a = f"Host {b}: ' + "word " * 34 + '{c}"\n', "sentence", id="a hole of an f-string"),
        pytest.param('f("one two three "\n  "' + "word " * 33 + '")\n', "sentence", id="joined strings"),
        pytest.param(
            f'"""Count.\n\nAll of them, e.g. {"word " * 32}"""\n',
            "sentence",
            id="an abbreviation ends nothing",
        ),
        pytest.param('"""Count\nwhoever waits."""\n', "word", id="a banned word"),
        pytest.param('"""Count what a\nrank is\ntold."""\n', "word", id="a banned phrase over lines"),
        pytest.param("# It is the parent that ends it.\n", "word", id="it is ... that"),
        pytest.param("# The launcher does not mind.\n", "word", id="processes have no mind"),
        pytest.param('a = "The rank said so."\n', "word", id="a word in a message"),
        pytest.param("def last_words(): ...\n", "name", id="a function's name"),
        pytest.param("class NullSpot: ...\n", "name", id="a class's name"),
        pytest.param("class Begun: ...\n", "name", id="an old class"),
        pytest.param(f"def test_{'a' * 66}(): ...\n", "name", id="a test's long name"),
        pytest.param("def test_rank_nobody_waits_for(): ...\n", "name", id="a word in a test's name"),
        pytest.param("a = 1\n" * 401, "file", id="a long file"),
        pytest.param("def f():\n" + "    a = 1\n" * 60, "function", id="a long function"),
    ],
)
def test_prose_of_planted_python_is_found(text, rule):
    assert set(rules(text)) == {rule}


def test_prose_of_tests_has_no_limit_of_length_and_no_messages():
    assert rules(f'a = "{long(36)}"\n' * 401, "tests/planted.py") == []


def test_prose_violation_names_its_line_and_the_word_to_write():
    [found] = prose.of_text("compare/planted.py", '"""Count.\n\nAll is well.\n\nNobody waits.\n"""\n')
    assert str(found).startswith("compare/planted.py:5: word: 'Nobody' in 'Nobody waits.': write no user")


def test_prose_of_good_markdown_has_no_violation():
    cells = " | ".join([long(35)] * 3)
    text = f"# {long(35)}\n{long(35)} {long(35)}\n\n| {cells} |\n\n* {long(35)}\n\n```\n{long(45)}\n```\n"
    assert prose.of_text("docs/planted.md", f"{text}\nSee [{long(9)}](http://a.b/c) and `nobody`.\n") == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("docs/planted.md", long(36)),
        ("docs/planted.md", f"| a | {long(36)} |"),
        ("docs/planted.md", f"```\ncode\n```\n{long(36)}"),
        ("Makefile", f"# {long(36)}"),
        ("Makefile", f"help: ## {long(36)}"),
        ("hostfiles/planted", f"node1 slots=2   # {long(36)}"),
    ],
)
def test_prose_of_planted_text_is_found(path, text):
    assert rules(text, path) == ["sentence"]

"""Test the quotes of the code that synchronises."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from backends import BACKENDS
from backends.code import code_of, quote

ROOT = Path(__file__).resolve().parents[3]


def every_arm():
    """Return every backend with each of its modes."""
    modes = {
        backend.name: next((own.choices for own in backend.options if own.name == "mode"), ("",))
        for backend in BACKENDS.values()
    }
    return [(name, {"mode": mode} if mode else {}) for name, choices in modes.items() for mode in choices]


@pytest.mark.parametrize(("backend", "options"), every_arm())
def test_code_of_every_mode_stands_in_its_file(backend, options):
    quotes = code_of(backend, options)
    assert quotes
    for own in quotes:
        lines = (ROOT / own.file).read_text().splitlines()[own.line - 1 :]
        assert lines[0].strip().startswith(own.text.splitlines()[0].strip())
        ast.parse(f"def quoted():\n{''.join(f'    {line}' + chr(10) for line in own.text.splitlines())}")


def test_quote_leaves_the_docstring_out_and_imports_no_library():
    before = set(sys.modules)
    found = quote("backends.strategies.reducers:ring")
    assert found.text.startswith("parts = tensor.tensor_split(world)")
    assert not {"backends.strategies.reducers"} & (set(sys.modules) - before)


@pytest.mark.parametrize(
    "name", ["backends.nowhere:f", "backends.code:nowhere", "backends.code:Quote.nowhere"]
)
def test_quote_of_what_is_missing_names_it(name):
    with pytest.raises(LookupError, match=name):
        quote(name)

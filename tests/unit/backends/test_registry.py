"""Test the registry: what entry points of other packages add, and which code an arm quotes."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import backends
from backends.arms import ARMS
from backends.arms.shared import CONTROLLER, MPI_LIBRARY, PROCESS_GROUP
from backends.code import code_of, quote, summary_of
from compare.doctor.backends_table import document_of
from compare.report.formats.terminal import plain_text
from tests.unit.factories import a_survey

ROOT = Path(__file__).resolve().parents[3]
THEIRS = backends.Backend(name="theirs", summary="", group="their:Group", strategy="their:Replica")


@pytest.fixture
def find(monkeypatch):
    """Add what entry points name to a copy of the registry; return what is new, and what is unreadable."""
    monkeypatch.setattr(backends, "BACKENDS", dict(backends.BACKENDS))
    monkeypatch.setattr(backends, "UNREADABLE", {})

    def found(*values):
        points = [EntryPoint(value, value, backends.ENTRY_POINT) for value in values]
        monkeypatch.setattr(backends, "entry_points", lambda group: points)
        known = set(backends.BACKENDS)
        backends._add_backends_of_packages()
        return backends.BACKENDS.keys() - known, backends.UNREADABLE

    return found


def test_entry_point_adds_a_backend(find, monkeypatch):
    monkeypatch.setattr(backends, "theirs", THEIRS, raising=False)
    assert find("backends:theirs") == ({"theirs"}, {})


@pytest.mark.parametrize("shared", [PROCESS_GROUP, CONTROLLER, MPI_LIBRARY], ids=lambda each: each.name)
def test_arm_without_an_option_of_its_group_has_the_options_default(shared):
    """An entry of another package need not know which options our groups read."""
    assert shared.value_in({}) == shared.default
    assert shared.value_in({shared.name: "other"}) == "other"


@pytest.mark.parametrize(
    ("arm", "options", "stage"),
    [
        ("zero", {}, "ZeRO stage 1, "),
        ("fsdp", {"reshard_after_forward": False}, "ZeRO stage 2 while it trains, "),
        ("fsdp", {"reshard_after_forward": True}, "ZeRO stage 3, "),
    ],
)
def test_arms_that_shard_name_their_stage_of_zero(arm, options, stage):
    assert summary_of(arm, options).startswith(stage)


def test_groups_and_launchers_read_no_option_that_an_arm_may_lack():
    files = [file for room in ("groups", "launchers") for file in (ROOT / "backends" / room).glob("*.py")]
    assert [file.name for file in files if re.search(r"options\[", file.read_text())] == []


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("no_such_module:ENTRY", "cannot be loaded: No module named 'no_such_module'"),
        ("os:sep", "is not a backends.Backend"),
        ("tests.unit.backends.test_registry:NAMED_LIKE_OURS", "is called ddp, as another backend is"),
    ],
)
def test_entry_point_that_adds_nothing_is_named_with_its_reason(find, value, why):
    assert find(value) == (set(), {value: f"{value} {why}"})


NAMED_LIKE_OURS = backends.Backend(name="ddp", summary="", group="their:Group", strategy="their:Replica")


def test_table_of_backends_names_what_adds_nothing(monkeypatch):
    monkeypatch.setitem(backends.UNREADABLE, "theirs", "their:ENTRY is not a backends.Backend")
    words = " ".join(plain_text(document_of(a_survey())).split())
    assert "theirs their:ENTRY is not a backends.Backend" in words


# ---- quotes ----


def every_arm():
    """Return every backend of ours with each of its modes."""
    modes = {
        backend.name: next((own.choices for own in backend.options if own.name == "mode"), ("",))
        for backend in ARMS
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

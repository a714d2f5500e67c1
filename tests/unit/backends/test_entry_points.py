"""Test what the entry points of other packages add to the registry."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

import backends
from compare.doctor.backends_table import document_of
from compare.report.formats.terminal import plain
from tests.unit.factories import a_survey

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
        backends._add_from_packages()
        return backends.BACKENDS.keys() - known, backends.UNREADABLE

    return found


def test_entry_point_adds_a_backend(find, monkeypatch):
    monkeypatch.setattr(backends, "theirs", THEIRS, raising=False)
    assert find("backends:theirs") == ({"theirs"}, {})


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("no_such_module:ENTRY", "cannot be loaded: No module named 'no_such_module'"),
        ("os:sep", "is not a backends.Backend"),
        ("tests.unit.backends.test_entry_points:NAMED_LIKE_OURS", "is called ddp, as another backend is"),
    ],
)
def test_entry_point_that_adds_nothing_is_named_with_its_reason(find, value, why):
    assert find(value) == (set(), {value: f"{value} {why}"})


NAMED_LIKE_OURS = backends.Backend(name="ddp", summary="", group="their:Group", strategy="their:Replica")


def test_table_of_backends_names_what_adds_nothing(monkeypatch):
    monkeypatch.setitem(backends.UNREADABLE, "theirs", "their:ENTRY is not a backends.Backend")
    words = " ".join(plain(document_of(a_survey())).split())
    assert "theirs their:ENTRY is not a backends.Backend" in words

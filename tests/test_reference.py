"""The reference pages are what the code states."""

from __future__ import annotations

import pytest

from backends import BACKENDS, Backend
from backends.arms import ARMS
from compare.cli.help import EXAMPLES
from tests.reference import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_reference_page_is_current(name):
    assert (FOLDER / name).read_text() == PAGES[name](), "run `make reference`"


def test_reference_has_every_command_and_every_option():
    commands, options = PAGES["cli.md"](), PAGES["options.md"]()
    for command, examples in EXAMPLES.items():
        assert f"## `ringside {command}`\n" in commands
        assert all(example in commands for example in examples)
    for backend in ARMS:
        assert f"`{backend.name}`" in options
        assert all(f"- `{option.name}=" in options for option in backend.options)


def test_reference_leaves_out_the_arms_of_other_packages(monkeypatch):
    theirs = Backend(
        name="theirs", summary="", group="their:Group", strategy="their:Replica", only_named=True
    )
    monkeypatch.setitem(BACKENDS, theirs.name, theirs)
    assert "theirs" not in PAGES["options.md"]()

"""The reference pages are what the code states."""

from __future__ import annotations

import pytest

from backends import BACKENDS
from compare.cli.help import EXAMPLES
from tests.reference import FOLDER, PAGES, bounds, split_facts


@pytest.mark.parametrize("name", PAGES)
def test_reference_page_is_current(name):
    assert (FOLDER / name).read_text() == PAGES[name](), "run `make reference`"


def test_reference_has_every_command_and_every_option():
    commands, options = PAGES["cli.md"](), PAGES["options.md"]()
    for command, examples in EXAMPLES.items():
        assert f"## `compare {command}`\n" in commands
        assert all(example in commands for example in examples)
    for backend in BACKENDS.values():
        assert f"`{backend.name}`" in options
        assert all(f"| `{option.name}` |" in options for option in backend.options)


def test_facts_of_a_flag_are_split_from_its_meaning():
    assert split_facts("Port.  [default: (as ssh is configured); 1<=x<=65535]") == (
        "Port.",
        ["default: (as ssh is configured)", "1<=x<=65535"],
    )
    assert split_facts("Rounds.  [default: (5; or 2); x>=1]")[1] == ["default: (5; or 2)", "x>=1"]
    assert split_facts("Holds raw/*[.gz].") == ("Holds raw/*[.gz].", [])
    assert bounds("1<=x<=65535") == "From 1 to 65535."
    assert bounds("x>=1") == "At least 1."

"""The table of `compare backends`."""

from __future__ import annotations

import pytest
from rich.console import Console

from backends import BACKENDS
from compare.doctor.backends_table import _options, declaration


@pytest.mark.parametrize("width", [80, 160])
def test_every_choice_of_an_option_is_readable(width):
    console = Console(width=width)
    with console.capture() as capture:
        console.print(_options())
    first_column = "".join(line[: width // 2].split("  ")[0].strip() for line in capture.get().splitlines())
    for choice in BACKENDS["manual"].options[0].choices:
        assert choice in first_column


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none", "every rank trains alone"),
        ("ddp", "the same training"),
        ("zero", "the same training; optimizer state in shards"),
        ("pipeline", "the same training; layers in shards"),
        ("localsgd", "another training, the same at period 1"),
    ],
)
def test_declaration_of_a_backend_names_training_and_shards(name, words):
    assert declaration(BACKENDS[name]) == words
